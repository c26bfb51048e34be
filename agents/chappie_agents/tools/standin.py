r"""A program that answers like ripgrep where ripgrep is missing.  Standard library only; reads, never writes.

Run as a file in a process of its own, because a regular expression cannot be stopped inside one:

    python -I standin.py files GLOB
    python -I standin.py lines PATTERN FLAGS CONTEXT GLOB [FILE]

in the directory to search.  FLAGS holds `i` (ignore case) and `f` (the pattern is plain text).  `files`
prints `path NUL`, `lines` prints `path NUL number [:-] text LF` and `--` between groups.  Exit codes are
ripgrep's: 0 found, 1 nothing found, 2 wrong use (said in one line).
"""

import os
import re
import sys
from collections import deque
from collections.abc import Iterator

SKIPPED = (".git", "node_modules", ".venv")
"""Directories that a search does not enter by itself."""

SNIFF = 64 * 1024
LINE = 1024 * 1024
"""Bytes of a line that are looked at; what a longer one holds beyond is not searched."""


def translate(glob: str) -> str:
    """A regular expression for a glob as in .gitignore: without a slash it matches the name at any depth.

    Raises `ValueError` for a brace or bracket that is not closed.
    """
    pattern = "" if "/" in glob.rstrip("/") else "(?:.*/)?"
    glob, index, depth = glob.lstrip("/"), 0, 0
    while index < len(glob):
        char = glob[index]
        index += 1
        if char == "*":
            if glob.startswith("*", index):
                whole = index == 1 or glob[index - 2] == "/"
                index += 1
                if whole and glob.startswith("/", index):
                    index += 1
                    pattern += "(?:.*/)?"
                else:
                    pattern += ".*" if whole and index == len(glob) else "[^/]*"
            else:
                pattern += "[^/]*"
        elif char == "?":
            pattern += "[^/]"
        elif char == "[":
            end = glob.find("]", index + (2 if glob[index : index + 1] in ("!", "^") else 1))
            if end < 0:
                raise ValueError("a [ is not closed")
            chosen = glob[index:end].replace("\\", "\\\\").replace("[", "\\[").replace("&&", "&\\&")
            index = end + 1
            pattern += f"[^/{chosen[1:]}]" if chosen[0] in "!^" else f"[{chosen}]"
        elif char == "{":
            depth += 1
            pattern += "(?:"
        elif char == "}" and depth:
            depth -= 1
            pattern += ")"
        elif char == "," and depth:
            pattern += "|"
        elif char == "\\" and index < len(glob):
            pattern += re.escape(glob[index])
            index += 1
        else:
            pattern += re.escape(char)
    if depth:
        raise ValueError("a { is not closed")
    return pattern


def walk(glob: str) -> Iterator[str]:
    """Regular files below the current directory, sorted by their path's components; follows no link."""
    wanted = re.compile(translate(glob), re.DOTALL)
    todo = [""]
    while todo:
        path = todo.pop()
        if path and not path.endswith("/"):
            if wanted.fullmatch(path):
                yield path
            continue
        try:
            with os.scandir(path or ".") as entries:
                found = [
                    (
                        os.fsencode(entry.name),
                        path + entry.name + ("/" if entry.is_dir(follow_symlinks=False) else ""),
                    )
                    for entry in entries
                    if entry.name not in SKIPPED
                    and (entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False))
                ]
        except OSError:
            continue
        todo += [name for _, name in sorted(found, reverse=True)]


def lines(path: str) -> Iterator[str]:
    """The lines of a text file without their ends; nothing for a binary or unreadable one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if b"\0" in file.read(SNIFF):
                return
            file.seek(0)
            while line := file.readline(LINE):
                rest = line
                while len(rest) == LINE and not rest.endswith(b"\n"):
                    rest = file.readline(LINE)
                yield line.decode("utf-8", "surrogateescape").rstrip("\n").removesuffix("\r")
    except OSError:
        return


def search(path: str, pattern: "re.Pattern[str]", context: int) -> Iterator[str]:
    """The lines of one file that match and those around them, as ripgrep prints them."""
    before: deque[tuple[int, str]] = deque(maxlen=context)
    last, after = 0, 0
    for number, line in enumerate(lines(path), 1):
        if pattern.search(line):
            first = before[0][0] if before else number
            if context and last and first > last + 1:
                yield "--\n"
            for earlier, text in before:
                yield f"{path}\0{earlier}-{text}\n"
            before.clear()
            yield f"{path}\0{number}:{line}\n"
            last, after = number, context
        elif after:
            yield f"{path}\0{number}-{line}\n"
            last, after = number, after - 1
        else:
            before.append((number, line))


def write(text: str) -> None:
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))


def main(arguments: list[str]) -> int:
    found = False
    if arguments[0] == "files":
        for path in walk(arguments[1]):
            write(path + "\0")
            found = True
        return 0 if found else 1
    text, flags, context, glob, *files = arguments[1:]
    if "\n" in text:
        raise ValueError("a pattern is matched line by line and cannot contain a line break")
    pattern = re.compile(re.escape(text) if "f" in flags else text, re.IGNORECASE if "i" in flags else 0)
    for path in files or walk(glob):
        here = False
        for line in search(path, pattern, int(context)):
            if found and not here and context != "0":
                write("--\n")
            write(line)
            found = here = True
        sys.stdout.buffer.flush()
    return 0 if found else 1


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except (ValueError, re.error) as error:
        write(f"{error}\n")
        code = 2
    sys.exit(code)
