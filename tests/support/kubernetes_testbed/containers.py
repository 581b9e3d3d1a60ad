"""A container as a process in namespaces of its own, with a root folder of its own."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import re
import shlex
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# What a container engine leaves to root unless the manifest drops it.
_CAPABILITIES = (
    "chown", "dac_override", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap", "net_bind_service", "net_raw",
    "sys_chroot", "mknod", "audit_write", "setfcap",
)  # fmt: skip
_OF_THE_MACHINE = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc")
_ENTER = Path(__file__).parent / "enter.py"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


class Log:
    """What a container has written: lines with the moment at which each came."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, bytes]] = []
        self.ended = False
        self._news = asyncio.Event()

    async def fill(self, stream: asyncio.StreamReader) -> None:
        """Reads until the container has closed its output."""
        with contextlib.suppress(ValueError):  # a line beyond any limit
            async for line in stream:
                moment = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
                self.lines.append((moment, line))
                self._wake()
        self.ended = True
        self._wake()

    async def more(self, seen: int) -> None:
        """Waits until there are more than `seen` lines, or all."""
        while len(self.lines) <= seen and not self.ended:
            await self._news.wait()

    def text(self) -> str:
        return b"".join(line for _, line in self.lines).decode(errors="replace")

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


@dataclass
class Mount:
    """One mount of a container: a folder or file of this machine, or memory where `source` is None."""

    source: Path | None
    target: str
    read_only: bool = False
    mode: int = 0o777
    size: str = ""


@dataclass
class Image:
    """What stands for images: the programs of this machine and some folders more. `folders` maps a path in the
    container to a folder here; `shown` are paths that the container sees as they are here, such as an interpreter's."""

    folders: dict[str, Path] = field(default_factory=dict)
    shown: list[Path] = field(default_factory=list)
    path: str = "/usr/local/bin:/usr/bin:/bin"
    missing: set[str] = field(default_factory=set)  # images that cannot be pulled
    workdir: str = "/"  # where a container begins that names no other place


class Container:
    """A container of a pod. `context` are the merged security contexts, `netns` the pod's network namespace."""

    def __init__(self, folder: Path, netns: str, hostname: str, spec: dict[str, Any], context: dict[str, Any]) -> None:
        self.folder, self.netns, self.hostname, self.spec, self.context = folder, netns, hostname, spec, context
        self.log = Log()
        self.environ: dict[str, str] = {}
        self.process: asyncio.subprocess.Process | None = None
        self.exit_code: int | None = None
        self._workdir = "/"
        self._reader: asyncio.Task[None] | None = None

    async def start(self, image: Image, mounts: list[Mount], environ: dict[str, str]) -> None:
        """Starts the process: it is process 1 of its PID namespace, as in a container."""
        self.environ = {"PATH": image.path, "HOME": "/", **environ}
        self._workdir = self.spec.get("workingDir", image.workdir)
        words = [expand(word, self.environ) for word in (*self.spec.get("command", []), *self.spec.get("args", []))]
        script = self.folder / "container.sh"
        script.write_text("\n".join(self._preparation(image, mounts)))
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(_ENTER), self.netns, "sh", str(script), *self._inside(words)),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            start_new_session=True, limit=2**22,
        )  # fmt: skip
        assert self.process.stdout is not None
        self._reader = asyncio.create_task(self.log.fill(self.process.stdout))
        while self.running and not (self.folder / "made").exists():
            await asyncio.sleep(0.01)

    async def ended(self) -> int:
        """Waits for its end; its exit code, 128 + N after signal N."""
        assert self.process is not None
        assert self._reader is not None
        code = await self.process.wait()
        await self._reader
        self.exit_code = 128 - code if code < 0 else code  # below 0: killed as a whole
        return self.exit_code

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def signal(self, number: int) -> None:
        """Sends a signal to process 1 of the container, which gets SIGTERM only if it handles it."""
        first = self._first_process()
        if first is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, number)

    def handles(self, number: int) -> bool:
        """Whether process 1 has a handler for this signal."""
        first = self._first_process()
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{first}/status").read_text().splitlines():
                if line.startswith("SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
        return False

    def kill(self) -> None:
        """Ends all its processes."""
        if self.running:
            assert self.process is not None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    async def execute(self, command: list[str], timeout_s: float) -> None:
        """Runs a command in the container, such as a preStop hook."""
        first = self._first_process()
        if first is None:
            return
        process = await asyncio.create_subprocess_exec(
            "nsenter", "-t", str(first), "-a", "-r", "-w", *self._inside(command), stdin=asyncio.subprocess.DEVNULL
        )
        try:
            await asyncio.wait_for(process.wait(), timeout_s)
        except asyncio.TimeoutError:
            process.kill()
            await process.wait()

    def termination_message(self) -> str:
        path = self.folder / "termination-log"
        return path.read_text(errors="replace")[:4096] if path.exists() else ""

    def _first_process(self) -> int | None:
        """Process 1 as this machine counts: the only child of what made its namespaces."""
        if not self.running:
            return None
        assert self.process is not None
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            return int(children[0]) if children else None
        return None

    def _inside(self, words: list[str]) -> list[str]:
        """The command as the container's user, with nothing but the container's variables."""
        context = self.context
        dropped = {name.lower() for name in (context.get("capabilities") or {}).get("drop", [])}
        kept = [name for name in _CAPABILITIES if not dropped & {"all", name}]
        kept += [name.lower() for name in (context.get("capabilities") or {}).get("add", [])]
        groups = [
            str(group)
            for group in (context.get("fsGroup"), *context.get("supplementalGroups", []))
            if group is not None
        ]
        identity = [
            "setpriv",
            "--inh-caps",
            "-all",
            "--bounding-set",
            ",".join(["-all", *(f"+{name}" for name in kept)]),
        ]
        if context.get("runAsUser"):
            identity += ["--reuid", str(context["runAsUser"]), "--regid", str(context.get("runAsGroup", 0))]
        identity += ["--groups", ",".join(groups)] if groups else ["--clear-groups"]
        if context.get("allowPrivilegeEscalation") is False:
            identity.append("--no-new-privs")
        variables = [f"{name}={value}" for name, value in self.environ.items()]
        return ["env", "-i", "-C", self._workdir, *variables, *identity, "--", *words]

    def _preparation(self, image: Image, mounts: list[Mount]) -> list[str]:
        """A shell script that builds the container's root and becomes the command given to it."""
        root = self.folder / "root"
        root.mkdir(exist_ok=True)
        lines = ["set -e", "umask 022", "mount --make-rprivate /", f"hostname {shlex.quote(self.hostname)}"]
        lines += [f"mount -t tmpfs -o mode=755 none {root}", f"cd {root}"]
        for name in _OF_THE_MACHINE:
            original = Path("/", name)
            if original.is_symlink():
                lines.append(f"ln -s {os.readlink(original)} {name}")
            elif original.is_dir():
                lines.append(f"mkdir {name}; mount --bind -o ro /{name} {name}")
        lines += ["mkdir proc sys tmp run dev; mount -t proc proc proc; mount -t sysfs -o ro sysfs sys"]
        lines += [
            "mount -t tmpfs -o mode=1777 none tmp; mount -t tmpfs -o mode=755 none dev; ln -s /proc/self/fd dev/fd"
        ]
        lines += [f"touch dev/{name}; mount --bind /dev/{name} dev/{name}" for name in _DEVICES]
        message = self.folder / "termination-log"
        message.touch()
        message.chmod(0o666)
        standard = [Mount(None, "/dev/shm", mode=0o1777, size="64m")]
        shown = [Mount(path, str(path), read_only=True) for path in image.shown]
        folders = [Mount(path, target, read_only=True) for target, path in image.folders.items()]
        for mount in (*standard, *shown, *folders, *mounts):
            lines += _mount(mount)
        lines += _mount(Mount(message, self.spec.get("terminationMessagePath", "/dev/termination-log")))
        if self.context.get("readOnlyRootFilesystem"):
            lines.append("mount -o remount,ro .")
        return [*lines, f"touch {self.folder}/made", f'exec chroot {root} "$@"', ""]


def _mount(mount: Mount) -> list[str]:
    target = shlex.quote(mount.target.lstrip("/"))
    if mount.source is None:
        size = f",size={mount.size}" if mount.size else ""
        return [f"mkdir -p {target}; mount -t tmpfs -o mode={mount.mode:o}{size} none {target}"]
    source = shlex.quote(str(mount.source))
    if mount.source.is_dir():
        made = f"mkdir -p {target}"
    else:
        made = f"mkdir -p $(dirname {target}); [ -e {target} ] || touch {target}"
    return [f"{made}; mount --bind{' -o ro' if mount.read_only else ''} {source} {target}"]


def expand(text: str, environ: dict[str, str]) -> str:
    """$(NAME) as Kubernetes replaces it; $$(NAME) becomes $(NAME), and an unknown name stays."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] is None else environ.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)", value, text)
