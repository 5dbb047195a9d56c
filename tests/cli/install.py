#!/usr/bin/env python3
"""`make install`: what it puts in place works after it was moved, for the command and for a project of somebody else."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from report import PARE, ROOT, Report, ended, expect, pare

BUILD = PARE.parent
LISTS = """cmake_minimum_required(VERSION 3.22)
project(somebody LANGUAGES CXX)
find_package(pare 0.1 REQUIRED)
file(GLOB lessons *.cpp)
foreach(lesson ${lessons})
  get_filename_component(name ${lesson} NAME_WE)
  add_executable(${name} ${lesson})
  target_link_libraries(${name} PRIVATE pare::pare)
endforeach()
"""


def run(*words, **options):
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=900, **options)


def cached(name):
    found = re.search(rf"^{name}:\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.M)
    return found.group(1) if found else ""


def install(report, work):
    """Installs, moves the folder elsewhere, and hands it back."""
    report.check("install", ended(run("cmake", "--install", BUILD, "--prefix", work / "first")))
    places = [path.relative_to(work / "first") for path in (work / "first").rglob("*")]
    wanted = ["bin/pare", "lib/libpare.a", "include/pare/rewrite/rewrite.h", "lib/cmake/pare/pareConfig.cmake",
              "include/pare/third_party/fmt/format.h", "include/pare/third_party/nlohmann/json.hpp"]
    report.check("what is there", expect([place for place in wanted if pathlib.Path(place) not in places], []))
    report.check("no sources, no commands", expect([str(p) for p in places if p.suffix == ".cpp" or "cli" in p.parts], []))
    headers = {str(path.relative_to(ROOT)) for path in (ROOT / "pare").rglob("*.h") if not {"claims", "cli", "families"} & set(path.parts)}
    found = {str(place.relative_to("include")) for place in places if place.suffix == ".h" and "third_party" not in place.parts}
    report.check("every header", expect(sorted(headers ^ found), []))
    moved = work / "moved" / "elsewhere"
    moved.parent.mkdir()
    (work / "first").rename(moved)
    for text in moved.glob("lib/cmake/pare/*"):
        named = [str(place) for place in (ROOT, BUILD, work, cached("PARE_TORCH")) if str(place) in text.read_text()]
        report.check(f"{text.name} names no folder", expect(named, []))
    return moved


def use(report, work, moved):
    """Another project, which knows where the package lies and which torch to take."""
    project, build = work / "somebody", work / "somebody" / "build"
    project.mkdir()
    (project / "CMakeLists.txt").write_text(LISTS)
    for lesson in (ROOT / "examples").glob("*.cpp"):
        shutil.copy(lesson, project)
    configure = ["cmake", "-S", project, f"-DCMAKE_PREFIX_PATH={moved}", f"-DCMAKE_CXX_COMPILER={cached('CMAKE_CXX_COMPILER')}"]
    result = run(*configure, "-B", work / "wrong", f"-DPARE_TORCH={work}")
    report.check("a wrong torch", ended(result, 1, ["no libtorch at", "-DPARE_TORCH=DIR"]))
    older = work / "older"
    (older / "include" / "ATen").mkdir(parents=True)
    (older / "include" / "ATen" / "ATen.h").write_text("")
    (older / "version.py").write_text("__version__ = '1.0.0+cpu'\n")
    result = run(*configure, "-B", work / "wrong", f"-DPARE_TORCH={older}")
    report.check("another torch", ended(result, 1, ["has version 1.0.0", "pass -DPARE_TORCH=DIR"]))
    (work / "bin").mkdir()
    (work / "bin" / "python3").write_text(f"#!/bin/sh\necho '{cached('PARE_TORCH')}'\n")  # as one that can import torch
    (work / "bin" / "python3").chmod(0o755)
    python = {**os.environ, "PATH": f"{work / 'bin'}:{os.environ['PATH']}"}
    report.check("the torch of python3", ended(run(*configure, "-B", work / "found", env=python)))
    report.check("configure", ended(run(*configure, "-B", build, f"-DPARE_TORCH={cached('PARE_TORCH')}")))
    built = run("cmake", "--build", build, "-j", os.cpu_count())  # without the project's own flags and precompiled headers
    report.check("build", ended(built))
    if built.returncode != 0:
        return
    report.check("a model", ended(pare("init", "model.json", "-o", "model", cwd=work)))
    result = run(build / "01_audit", "model", cwd=work)
    report.check("audit", ended(result))
    report.check("as here", expect(result.stdout.startswith(pare("audit", "model", cwd=work).stdout), True))
    result = run(build / "03_write_a_pass", "model", "folded", cwd=work)
    report.check("a pass", ended(result, 0, ["applies, saves 8", ": within_noise"]))


def main():
    report = Report("install")
    if cached("PARE_ASAN") == "ON":
        report.skip("all of it", "a library with sanitizers is not installed")
        report.finish()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "model.json").write_text("""{"width": 8, "vocab": 20, "context": 8,
            "embedding": {"position": "learned", "types": 1},
            "blocks": [{"attention": {"heads": 2, "head_width": 4}, "mlp": {"width": 8, "activation": "gelu"}}]}""")
        moved = install(report, work)
        result = run(moved / "bin" / "pare", "--version")
        report.check("the command", expect([result.returncode, result.stdout], [0, pare("--version").stdout]))
        report.check("its presets", ended(run(moved / "bin" / "pare", "audit", "gpt2"), 0, ["gpt2: "]))
        use(report, work, moved)
    report.finish()


main()
