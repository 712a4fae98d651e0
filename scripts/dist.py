#!/usr/bin/env python3
"""dist.py PROGRAM FOLDER: packs a built program as a tar.gz, a .deb, a Python wheel and an npm package.

Names, versions and licences come from `cargo metadata`, what the program needs of a system from the
program itself. Times in the packages are the commit's: the same program packs to the same bytes.
"""

import base64
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time as epoch
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Libraries compiled into the program from the sources that these crates bring.
VENDORED = {
    "rdkafka-sys": ("librdkafka", "BSD-2-Clause"),
    "librocksdb-sys": ("rocksdb", "Apache-2.0"),
    "lz4-sys": ("lz4", "BSD-2-Clause"),
    "zstd-sys": ("zstd", "BSD-3-Clause"),
}
NPM_PROCESSOR = {"x86_64": "x64", "aarch64": "arm64"}
NOTICE = re.compile(r"(?i)^(licen[cs]e|copying|notice|unlicense|copyright)([-_.].*)?$")


def run(*command, **more):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, cwd=ROOT, **more).stdout


def metadata(triple):
    """The package that has the program, and all packages and their dependencies by name and version."""
    found = json.loads(run("cargo", "metadata", "--locked", "--format-version=1", "--filter-platform", triple))
    packages = {package["id"]: package for package in found["packages"]}
    [own] = [
        package
        for package in packages.values()
        if package["id"] in found["workspace_members"]
        and any(target["name"] == "orloj" and "bin" in target["kind"] for target in package["targets"])
    ]

    def key(identity):
        return packages[identity]["name"], packages[identity]["version"]

    edges = {
        key(node["id"]): {key(to["pkg"]) for to in node["deps"] if any(kind["kind"] != "dev" for kind in to["dep_kinds"])}
        for node in found["resolve"]["nodes"]
    }
    return own, {key(identity): package for identity, package in packages.items()}, edges


def tree(own, kinds):
    """The packages, by name and version, that `own` really has with its features, unlike `cargo metadata`'s."""
    lines = run("cargo", "tree", "--locked", "-p", own["name"], "-e", kinds, "--prefix=none", "--format={p}").split("\n")
    return {(line.split()[0], line.split()[1].removeprefix("v")) for line in lines if line}


def needs(program):
    """The shared libraries that the program loads, and the lowest version of the C library that will do."""
    libraries = re.findall(r"NEEDED +(\S+)", run("objdump", "-p", program))
    versions = {tuple(map(int, found)) for found in re.findall(r"GLIBC_(\d+)\.(\d+)", run("objdump", "-T", program))}
    return sorted(libraries), ".".join(map(str, max(versions)))


def reference(key):
    return "pkg:cargo/{}@{}".format(*key)


def component(key, package, scope, checksums):
    entry = {
        "type": "library",
        "bom-ref": reference(key),
        "name": key[0],
        "version": key[1],
        "purl": reference(key),
        "scope": scope,
    }
    if package["license"]:
        entry["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if key in checksums:
        entry["hashes"] = [{"alg": "SHA-256", "content": checksums[key]}]
    if key[0] in VENDORED:
        library, licence = VENDORED[key[0]]
        version = re.search(r"\d+\.\d+\.\d+$", key[1])[0]
        purl = f"pkg:generic/{library}@{version}"
        inside = {"type": "library", "bom-ref": purl, "name": library, "version": version, "purl": purl}
        entry["components"] = [{**inside, "licenses": [{"license": {"id": licence}}]}]
    return entry


def sbom(own, packages, edges, inside, used, program):
    """CycloneDX: what is in the program is `required`; what only helped to build it is `excluded`."""
    checksums = {
        (name, version): checksum
        for name, version, checksum in re.findall(
            r'name = "(.*)"\nversion = "(.*)"\nsource = ".*"\nchecksum = "(.*)"', (ROOT / "Cargo.lock").read_text()
        )
    }
    itself = (own["name"], own["version"])
    described = {
        "type": "application",
        "bom-ref": reference(itself),
        "name": own["name"],
        "version": own["version"],
        "licenses": [{"expression": own["license"]}],
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(program).hexdigest()}],
    }
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": described},
        "components": [
            component(key, packages[key], "required" if key in inside else "excluded", checksums)
            for key in sorted(used - {itself})
        ],
        "dependencies": [
            {"ref": reference(key), "dependsOn": [reference(to) for to in sorted(edges[key] & used)]}
            for key in sorted(used)
        ],
    }
    return json.dumps(document, indent=1) + "\n"


def notices(inside, packages):
    """The licence texts of what is in the program, each once, after the names of those that have it."""
    holders = {}
    for key in inside:
        if packages[key]["source"] is None:  # one of ours
            continue
        folder = pathlib.Path(packages[key]["manifest_path"]).parent
        # The library that a crate brings has its licence beside its sources.
        for file in [*folder.iterdir(), *folder.glob("*/*")]:
            if file.is_file() and NOTICE.match(file.name):
                text = file.read_text(errors="replace").strip()
                holders.setdefault(text, set()).add(" ".join(key))
    chapters = sorted((", ".join(sorted(names)), text) for text, names in holders.items())
    return "".join(f"{'=' * 80}\n{names}\n{'=' * 80}\n\n{text}\n\n" for names, text in chapters)


def tarball(path, top, files, time):
    """Writes a tar.gz of `files`: {name: (bytes, mode)} under the folder `top`."""
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", mtime=time, fileobj=raw) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for name, (content, mode) in sorted(files.items()):
                entry = tarfile.TarInfo(f"{top}/{name}")
                entry.size, entry.mode, entry.mtime = len(content), mode, time
                archive.addfile(entry, io.BytesIO(content))


def wheel(folder, own, program, files, required, time):
    """Libraries of the system are needed that the manylinux tags do not allow: therefore plain `linux`."""
    machine, libraries, libc = required
    stem, tag = f"{own['name']}-{own['version']}", f"py3-none-linux_{machine}"
    info = f"{stem}.dist-info"
    about = "".join(
        [
            f"Metadata-Version: 2.1\nName: {own['name']}\nVersion: {own['version']}\n",
            f"Summary: {own['description']}\nLicense: {own['license']}\n",
            f"Requires-External: glibc (>={libc})\n",
            *(f"Requires-External: {library}\n" for library in libraries),
            "Description-Content-Type: text/markdown\n\n",
        ]
    ).encode() + files["README.md"]
    content = {
        f"{stem}.data/scripts/orloj": (program, 0o755),
        f"{info}/METADATA": (about, 0o644),
        f"{info}/WHEEL": (f"Wheel-Version: 1.0\nGenerator: orloj\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), 0o644),
        **{f"{info}/licenses/{name}": (files[name], 0o644) for name in ("LICENSE", "THIRD-PARTY.txt")},
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, (data, _) in content.items()
    )
    content[f"{info}/RECORD"] = (f"{record}{info}/RECORD,,\n".encode(), 0o644)
    date = epoch.gmtime(max(time, 315532800))[:6]
    with zipfile.ZipFile(folder / f"{stem}-{tag}.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (data, mode) in content.items():
            entry = zipfile.ZipInfo(name, date)
            entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)


def npm(folder, own, program, files, machine, time):
    processor = NPM_PROCESSOR[machine]
    about = {
        "name": own["name"],
        "version": own["version"],
        "description": own["description"],
        "license": own["license"],
        "os": ["linux"],
        "cpu": [processor],
        "libc": ["glibc"],
        "bin": {"orloj": "bin/orloj"},
    }
    content = {
        "package.json": (json.dumps(about, indent=2).encode() + b"\n", 0o644),
        "bin/orloj": (program, 0o755),
        **{name: (data, 0o644) for name, data in files.items()},
    }
    tarball(folder / f"{own['name']}-{own['version']}-linux-{processor}.tgz", "package", content, time)


def deb(folder, own, program, files, time):
    """What it depends on is worked out by Debian's own tool, from the program."""
    architecture = run("dpkg", "--print-architecture").strip()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        (scratch / "debian").mkdir()
        (scratch / "debian/control").write_text(f"Source: orloj\n\nPackage: orloj\nArchitecture: {architecture}\n")
        tree = scratch / "tree"
        content = {
            "usr/bin/orloj": program,
            "usr/share/doc/orloj/copyright": files["LICENSE"] + b"\n" + files["THIRD-PARTY.txt"],
            "usr/share/doc/orloj/README.md": files["README.md"],
            "usr/share/doc/orloj/examples/orloj.default.toml": files["orloj.default.toml"],
        }
        for name, data in content.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes(data)
            (tree / name).chmod(0o755 if "bin" in name else 0o644)
        for directory in (tree, *(path for path in tree.rglob("*") if path.is_dir())):
            directory.chmod(0o755)
        depends = subprocess.run(
            ["dpkg-shlibdeps", "-O", tree / "usr/bin/orloj"],
            check=True, text=True, stdout=subprocess.PIPE, cwd=scratch,
        ).stdout.partition("shlibs:Depends=")[2].strip()
        size = sum(len(data) for data in content.values()) // 1024
        (tree / "DEBIAN").mkdir()
        (tree / "DEBIAN/control").write_text(
            f"Package: orloj\nVersion: {own['version']}\nArchitecture: {architecture}\n"
            # Nothing is published yet: there is no address to write to.
            "Maintainer: The authors of Orloj <orloj@example.invalid>\n"
            f"Depends: {depends}\nRecommends: ca-certificates\nInstalled-Size: {size}\n"
            f"Section: net\nPriority: optional\nDescription: {own['description']}\n"
        )
        run(
            "dpkg-deb", "--build", "--root-owner-group", tree,
            folder / f"{own['name']}_{own['version']}_{architecture}.deb",
            env={**os.environ, "SOURCE_DATE_EPOCH": str(time)},
        )


def main(program_path, folder):
    triple = re.search(r"^host: (.*)$", run("rustc", "-vV"), re.M)[1]
    machine = triple.partition("-")[0]
    own, packages, edges = metadata(triple)
    time = int(os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct"))
    program = pathlib.Path(program_path).read_bytes()
    said = run(program_path, "--version").strip()
    assert said == f"orloj {own['version']}", f"{program_path} says {said}, Cargo.toml {own['version']}"
    libraries, libc = needs(program_path)

    folder = pathlib.Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    stem = f"{own['name']}-{own['version']}"
    inside, used = tree(own, "normal,no-proc-macro"), tree(own, "normal,build")
    (folder / f"{stem}.cdx.json").write_text(sbom(own, packages, edges, inside, used, program))
    files = {name: (ROOT / name).read_bytes() for name in ("README.md", "LICENSE", "orloj.default.toml")}
    files["THIRD-PARTY.txt"] = notices(inside, packages).encode()

    content = {"orloj": (program, 0o755), **{name: (data, 0o644) for name, data in files.items()}}
    tarball(folder / f"{stem}-{triple}.tar.gz", f"{stem}-{triple}", content, time)
    wheel(folder, own, program, files, (machine, libraries, libc), time)
    npm(folder, own, program, files, machine, time)
    deb(folder, own, program, files, time)

    made = sorted(folder.iterdir())
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made)
    (folder / "SHA256SUMS").write_text(sums)
    for path in made:
        print(f"{path.stat().st_size / 1e6:7.1f} MB  {path}")
    print(f"The program needs the C library {libc} or later, and {', '.join(libraries)}.")


if __name__ == "__main__":
    main(*sys.argv[1:])
