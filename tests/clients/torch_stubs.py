"""Lets PyPI's CUDA build of PyTorch load on a machine that has no CUDA libraries.

The wheels of PyTorch on PyPI are linked against some 4 GB of NVIDIA libraries, none of which is
called when tensors stay on the CPU: the dynamic loader only wants to find their names and symbols.
So every symbol that nothing installed defines goes into one small library, as a function that
aborts with its own name, and every missing library becomes an empty one that depends on it. The
loader searches symbols globally, hence which missing library a symbol belonged to does not matter.

usage: python torch_stubs.py        (with the environment's own python; needs cc, nm, readelf, ldd)
"""

import pathlib
import subprocess
import sysconfig
import tempfile

STUB_NAME = "libmlgw_cuda_stub.so"


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbols(path, which):
    """Names in the dynamic symbol table of `path`; `which` is --defined-only or --undefined-only."""
    found = set()
    for line in run("nm", "--dynamic", which, "--format=posix", str(path)).splitlines():
        name, kind = line.split()[:2]
        if which == "--undefined-only" and kind != "U":
            continue  # weak: may stay unresolved
        found.add(name.split("@")[0])
    return found


def linked(path):
    """(libraries the loader finds for `path`, names of those it misses)."""
    found, missing = set(), set()
    for line in run("ldd", str(path)).splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if not arrow:
            continue
        if rest.startswith("not found"):
            missing.add(name)
        else:
            found.add(rest.rsplit(" (", 1)[0])
    return found, missing


def compile_library(path, soname, source, *link):
    with tempfile.NamedTemporaryFile("w", suffix=".c") as file:
        file.write(source)
        file.flush()
        options = [
            "-shared",
            "-fPIC",
            "-O0",
            "-w",
            "-fno-builtin",
            "-Wl,--no-as-needed",
            "-Wl,-rpath,$ORIGIN",
        ]
        run("cc", *options, f"-Wl,-soname,{soname}", "-o", str(path), file.name, *link)


def stub_source(names):
    body = "".join(f'int {name}(void) {{ stub("{name}"); return 1; }}\n' for name in sorted(names))
    return (
        "#include <stdio.h>\n#include <stdlib.h>\n"
        'static void stub(const char *name) { fprintf(stderr, "no CUDA here: %s\\n", name); abort(); }\n'
        + body
    )


def main():
    packages = pathlib.Path(sysconfig.get_paths()["purelib"])
    folder = packages / "torch" / "lib"
    ours = sorted(folder.glob("*.so"))
    libraries, missing = set(map(str, ours)), set()
    for path in ours:
        found, absent = linked(path)
        libraries |= found
        missing |= absent
    if not missing:
        return
    defined = set().union(*(symbols(path, "--defined-only") for path in libraries))
    undefined = set().union(*(symbols(path, "--undefined-only") for path in ours))
    names = undefined - defined
    compile_library(folder / STUB_NAME, STUB_NAME, stub_source(names))
    for name in sorted(missing):
        compile_library(folder / name, name, "", f"-L{folder}", f"-l:{STUB_NAME}")
    print(f"{len(names)} symbols stubbed for {', '.join(sorted(missing))}")


if __name__ == "__main__":
    main()
