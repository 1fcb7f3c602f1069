#!/usr/bin/env python3
"""Makes the images that src/ext4.rs changes: make.py, in this folder, with mke2fs installed."""
import os, subprocess, tempfile

PLAIN = "^metadata_csum,^uninit_bg,^resize_inode"
IMAGES = {
    "plain": (1, ["-O", PLAIN + ",^has_journal"]),
    "journal": (3, ["-O", PLAIN, "-J", "size=1"]),
    "checksums": (3, ["-O", "metadata_csum,^resize_inode", "-J", "size=1"]),
    # Many small groups, of which most were never used; a folder with an index; a file of many extents.
    "groups": (4, ["-O", PLAIN + ",^has_journal,64bit,^flex_bg", "-g", "512"]),
    "unused": (4, ["-O", "uninit_bg,^metadata_csum,^resize_inode,^has_journal,^64bit", "-g", "512"]),
}
INDEXED = ["groups", "unused"]
BLOCK = 1024

with tempfile.TemporaryDirectory() as folder:
    root = f"{folder}/root"
    os.makedirs(f"{root}/dir/deep")
    os.makedirs(f"{root}/many")
    for name in range(60):
        open(f"{root}/many/a name of some length {name}", "w").close()
    with open(f"{root}/holes", "wb") as file:
        for piece in range(6):
            file.seek(piece * 8 * BLOCK)
            file.write(b"x" * 100)
    with open(f"{root}/dir/text", "w") as file:
        file.write("text\n" * 300)
    os.symlink("dir/text", f"{root}/short")
    os.symlink("dir/" * 40, f"{root}/long")
    os.link(f"{root}/dir/text", f"{root}/dir/deep/link")
    os.mkfifo(f"{root}/fifo")
    for name, (mib, options) in IMAGES.items():
        path = f"{folder}/image"
        with open(path, "wb") as file:
            file.truncate(mib << 20)
        fixed = ["-U", "clear", "-E", "hash_seed=00000000-0000-0000-0000-000000000001,root_owner=0:0"]
        command = ["mke2fs", "-q", "-F", "-t", "ext4", "-b", str(BLOCK), "-N", "128", *fixed, *options, "-d", root, path]
        environment = dict(os.environ, PATH=os.environ["PATH"] + ":/usr/sbin:/sbin")
        subprocess.run(command, check=True, env=environment)
        if name in INDEXED:
            subprocess.run(["e2fsck", "-fyD", path], check=False, env=environment, stdout=subprocess.DEVNULL)
        with open(path, "rb") as file:
            image = file.read()
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), name), "wb") as out:
            out.write((len(image) // BLOCK).to_bytes(4, "little"))
            for number in range(len(image) // BLOCK):
                block = image[number * BLOCK:][:BLOCK]
                if any(block):
                    out.write(number.to_bytes(4, "little") + block)
