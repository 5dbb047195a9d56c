#!/usr/bin/env python3
"""Writes what every report carries into a C++ file: embed_assets.py OUTPUT STYLE.css SCRIPT.js [plotly.min.js].

The charting library is compressed, since it is many times larger than all else, and cut into pieces, since compilers
need not take longer literals. The script's hash lets a page name the one script that may run in it.
"""

import base64
import gzip
import hashlib
import json
import pathlib
import re
import sys

PIECE = 60000  # a compiler has to take 65536 characters


def literal(text):
    def character(c):
        if c in '\\"':
            return "\\" + c
        return c if 32 <= ord(c) < 127 else "".join(f"\\{byte:03o}" for byte in c.encode())

    return "\n".join('    "' + "".join(map(character, line)) + '\\n"' for line in text.splitlines())


def main():
    output, style, script, *plotly = (pathlib.Path(argument) for argument in sys.argv[1:])
    script_text = script.read_text(encoding="utf-8")
    script_hash = base64.b64encode(hashlib.sha256(script_text.encode()).digest()).decode()
    if re.search("</script|<!--", script_text, re.I):
        sys.exit(f"{script} would end its own element: write '</script' and '<!--' in pieces")
    pieces, notice = [], ""
    if plotly:
        library = plotly[0].read_bytes()
        packed = base64.b64encode(gzip.compress(library, 9, mtime=0)).decode()
        pieces = [packed[start:start + PIECE] for start in range(0, len(packed), PIECE)]
        head = library[:400].decode(errors="replace")
        words = [re.search(pattern, head) for pattern in (r"plotly\.js v[\w.-]+", r"Copyright [^\n*]*", r"Licensed under [^\n*]*")]
        if not all(words):
            sys.exit(f"{plotly[0]} does not begin with plotly's name, copyright and licence: is it that file?")
        notice = ", ".join(word.group(0).strip().rstrip(".") for word in words)
    array = "\n".join(f'    {{"{piece}", {len(piece)}}},' for piece in pieces)  # g++ gives up counting that much itself
    declared = f"constexpr std::string_view plotly_pieces[] = {{\n{array}\n}};\n" if pieces else ""
    text = f"""#include "pare/report/assets.h"

namespace pare {{

namespace {{

constexpr std::string_view style_text =
{literal(style.read_text(encoding="utf-8"))};
constexpr std::string_view script_text =
{literal(script_text)};
{declared}
}}  // namespace

const ReportAssets& report_assets() {{
  static const ReportAssets assets{{style_text, script_text, "{script_hash}", {"plotly_pieces" if pieces else "{}"}, {json.dumps(notice)}}};
  return assets;
}}

}}  // namespace pare
"""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
