"""A Kerberos realm on this machine's loopback for the cluster of :mod:`cluster`: a KDC, its principals and their keys.

The programs are MIT's (the packages krb5-kdc, krb5-admin-server and krb5-user).
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["REALM", "SERVICES", "USER", "Realm"]

REALM = "TFC.TEST"
SERVICES = ("nn", "dn", "rm", "nm", "HTTP")
USER = "alice"
_PROGRAMS = ("krb5kdc", "kadmin.local", "kdb5_util", "kinit")
_TICKETS_LIVE = "1h"


@dataclass(frozen=True)
class Realm:
    """Where everything of it is.

    Attributes:
        directory: holds all of it.
        port: of the KDC, on 127.0.0.1.
    """

    directory: Path
    port: int

    @property
    def client_configuration(self) -> Path:
        """krb5.conf."""
        return self.directory / "krb5.conf"

    @property
    def tickets(self) -> Path:
        """The user's, once they have logged in."""
        return self.directory / "tickets"

    @property
    def environment(self) -> dict[str, str]:
        """What its programs, and Java, need to find it."""
        return {
            "KRB5_CONFIG": str(self.client_configuration),
            "JAVA_TOOL_OPTIONS": f"-Djava.security.krb5.conf={self.client_configuration}",
        }

    def keytab(self, name: str) -> Path:
        """The keys of a service, or of the user."""
        return self.directory / f"{name}.keytab"

    @staticmethod
    def principal(name: str) -> str:
        """What a service, or the user, is called in the realm."""
        return f"{name}@{REALM}" if name == USER else f"{name}/localhost@{REALM}"

    def create(self) -> None:
        """Writes the configuration and makes the database with all principals. Raises CalledProcessError."""
        self.directory.mkdir(parents=True, mode=0o700)
        self.client_configuration.write_text(self._client_text())
        (self.directory / "kdc.conf").write_text(self._kdc_text())
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", secrets.token_hex(16))
        for name in (*SERVICES, USER):
            self._run("kadmin.local", "-q", f"addprinc -randkey {self.principal(name)}")
            self._run("kadmin.local", "-q", f"ktadd -k {self.keytab(name)} {self.principal(name)}")

    def command(self) -> list[str]:
        """What runs the KDC in the foreground."""
        return [_find("krb5kdc"), "-n", "-r", REALM]

    @property
    def kdc_environment(self) -> dict[str, str]:
        """What the KDC and its tools need besides."""
        return {"KRB5_KDC_PROFILE": str(self.directory / "kdc.conf"), "KRB5_CONFIG": str(self.client_configuration)}

    def log_in(self, name: str, tickets: Path) -> None:
        """Gets a ticket by the keytab of a principal."""
        self._run("kinit", "-c", str(tickets), "-k", "-t", str(self.keytab(name)), self.principal(name))

    def _run(self, program: str, *arguments: str) -> None:
        environ = {**os.environ, **self.kdc_environment}
        subprocess.run(
            [_find(program), *arguments], env=environ, check=True, capture_output=True, stdin=subprocess.DEVNULL
        )

    def _client_text(self) -> str:
        return f"""\
[libdefaults]
  default_realm = {REALM}
  dns_lookup_realm = false
  dns_lookup_kdc = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
  ticket_lifetime = {_TICKETS_LIVE}
[realms]
  {REALM} = {{
    kdc = 127.0.0.1:{self.port}
  }}
"""

    def _kdc_text(self) -> str:
        return f"""\
[kdcdefaults]
  kdc_listen = 127.0.0.1:{self.port}
  kdc_tcp_listen = 127.0.0.1:{self.port}
[realms]
  {REALM} = {{
    database_name = {self.directory / "database"}
    key_stash_file = {self.directory / "stash"}
    acl_file = {self.directory / "acl"}
    max_life = {_TICKETS_LIVE}
  }}
[logging]
  kdc = FILE:{self.directory / "kdc.log"}
"""


def missing_programs() -> tuple[str, ...]:
    """Those of Kerberos that are not installed."""
    return tuple(name for name in _PROGRAMS if _find(name) == name)


def _find(program: str) -> str:
    """Its path; daemons are not on everyone's PATH."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))
    return shutil.which(program, path=path) or program
