# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""A Hub on the loopback address that speaks as much of the real protocol as `huggingface_hub` uses for models.

What it does not know it answers with 501. Blobs lie in the folder it is given, all else is in memory.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml


MAX_BODY = 64 * 2**20
REPO = r"(?P<repo_id>[\w.-]+/[\w.-]+)"


class Refused(Exception):
    """An answer other than success."""

    def __init__(self, status: int, message: str, code: str | None = None, sha: str | None = None, **body: str):
        super().__init__(message)
        self.status, self.body = status, {"error": message, **body}
        headers = {"X-Error-Message": message, "X-Error-Code": code, "X-Repo-Commit": sha}
        self.headers = {name: value for name, value in headers.items() if value}


@dataclass(frozen=True)
class Blob:
    """A file of a commit: its git object id, or its SHA-256 where it is stored through LFS."""

    oid: str
    size: int
    lfs: bool


@dataclass
class Repo:
    private: bool
    commits: dict[str, dict[str, Blob]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def files(self, revision: str) -> tuple[str, dict[str, Blob]]:
        sha = self.branches.get(revision, revision)
        if sha not in self.commits:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return sha, self.commits[sha]

    def commit(self, branch: str, files: dict[str, Blob]) -> str:
        sha = hashlib.sha1(f"{len(self.commits)} {sorted(files.items())}".encode()).hexdigest()
        self.commits[sha], self.branches[branch] = files, sha
        return sha


class LoopbackHub:
    """
    Attributes:
        url: what HF_ENDPOINT has to be.
        repos: by id.
        requests: `METHOD path` of all requests so far.
        unknown: those that were answered with 501.
    """

    def __init__(self, folder: Path, tokens: dict[str, str]):
        self.folder, self.tokens = folder, tokens
        self.repos: dict[str, Repo] = {}
        self.requests: list[str] = []
        self.unknown: list[str] = []
        self.lock = threading.Lock()
        self._drops: list[tuple[str, bool]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"hub": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def drop(self, pattern: str, times: int = 1, after: bool = False) -> None:
        """Close the connection of the next requests that match, in the middle of the body, or `after` all is done."""
        self._drops += [(pattern, after)] * times

    def takes_drop(self, request: str, after: bool) -> bool:
        with self.lock:
            for drop in self._drops:
                if drop[1] == after and re.search(drop[0], request):
                    self._drops.remove(drop)
                    return True
        return False

    def add_blob(self, content: bytes, lfs: bool) -> Blob:
        oid = hashlib.sha256(content).hexdigest() if lfs else git_oid(content)
        (self.folder / oid).write_bytes(content)
        return Blob(oid, len(content), lfs)

    def read(self, repo_id: str, path: str, revision: str = "main") -> bytes:
        return (self.folder / self.repos[repo_id].files(revision)[1][path].oid).read_bytes()


def git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    hub: LoopbackHub
    protocol_version = "HTTP/1.1"
    timeout = 20

    # --- requests and answers ----------------------------------------------------------------------------------------

    def handle_request(self) -> None:
        path, request = unquote(urlsplit(self.path).path), f"{self.command} {unquote(urlsplit(self.path).path)}"
        self.hub.requests.append(request)
        if self.hub.takes_drop(request, after=False):
            self.rfile.read(min(10, int(self.headers.get("Content-Length", 0))))
            self.close_connection = True
            return
        try:
            body = self.read_body()
            for method, pattern, answer in ROUTES:
                if method == self.command.replace("HEAD", "GET") and (match := re.fullmatch(pattern, path)):
                    with self.hub.lock:
                        result = answer(self, body=body, **match.groupdict())
                    break
            else:
                self.hub.unknown.append(request)
                raise Refused(501, f"the loopback Hub does not know {request}")
        except Refused as refused:
            self.answer(refused.status, json.dumps(refused.body).encode(), refused.headers)
            return
        if self.hub.takes_drop(request, after=True):
            self.close_connection = True
        elif isinstance(result, tuple):
            self.answer(*result)
        else:
            self.answer(200, json.dumps(result).encode())

    do_GET = do_HEAD = do_POST = do_PUT = handle_request

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            chunks = []
            while size := int(self.rfile.readline(20), 16):
                chunks.append(self.rfile.read(min(size, MAX_BODY)))
                self.rfile.readline(2)
            self.rfile.readline(2)
            return b"".join(chunks)
        size = int(self.headers.get("Content-Length", 0))
        if size > MAX_BODY:
            self.close_connection = True
            raise Refused(413, f"{size} bytes are more than {MAX_BODY}")
        return self.rfile.read(size)

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass

    # --- who may what ------------------------------------------------------------------------------------------------

    def user(self) -> str | None:
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        if scheme == "Bearer" and token not in self.hub.tokens:
            raise Refused(401, "Invalid credentials in Authorization header")
        return self.hub.tokens.get(token)

    def repo(self, repo_id: str, write: bool = False) -> Repo:
        user, repo = self.user(), self.hub.repos.get(repo_id)
        if repo is None or (repo.private and user != repo_id.split("/")[0]):
            raise Refused(404 if user else 401, "Repository not found", "RepoNotFound")
        if write and user != repo_id.split("/")[0]:
            raise Refused(403 if user else 401, f"you may not write to {repo_id}")
        return repo

    # --- endpoints ---------------------------------------------------------------------------------------------------

    def whoami(self, body: bytes) -> dict:
        if (user := self.user()) is None:
            raise Refused(401, "Unauthorized")
        return {"type": "user", "name": user, "orgs": []}

    def agent_harnesses(self, body: bytes) -> dict:
        return {"standardEnvVars": [], "harnesses": {}}

    def create_repo(self, body: bytes) -> dict:
        values, user = json.loads(body), self.user()
        repo_id = f"{values['organization'] or user}/{values['name']}"
        if repo_id.split("/")[0] != user:
            raise Refused(403 if user else 401, f"you may not create {repo_id}")
        if repo_id in self.hub.repos:
            raise Refused(409, "You already created this model repo", url=f"{self.hub.url}/{repo_id}")
        repo = self.hub.repos[repo_id] = Repo(private=values.get("visibility") == "private")
        repo.commit("main", {})
        return {"url": f"{self.hub.url}/{repo_id}", "id": repo_id, "name": repo_id}

    def validate_yaml(self, body: bytes) -> dict:
        metadata = yaml.safe_load(json.loads(body)["content"].split("---")[1])
        return {"errors": [] if isinstance(metadata, dict) else [{"message": "no metadata"}], "warnings": []}

    def preupload(self, body: bytes, repo_id: str, revision: str) -> dict:
        _, present = self.repo(repo_id, write=True).files(revision)
        return {
            "files": [
                {
                    "path": entry["path"],
                    "uploadMode": "lfs" if b"\0" in base64.b64decode(entry["sample"]) else "regular",
                    "shouldIgnore": False,
                    "oid": present[entry["path"]].oid if entry["path"] in present else None,
                }
                for entry in json.loads(body)["files"]
            ]
        }

    def lfs_batch(self, body: bytes, repo_id: str) -> dict:
        self.repo(repo_id, write=True)
        objects = [{"oid": entry["oid"], "size": entry["size"]} for entry in json.loads(body)["objects"]]
        for entry in objects:
            if not (self.hub.folder / entry["oid"]).exists():
                entry["actions"] = {"upload": {"href": f"{self.hub.url}/lfs/{entry['oid']}"}}
        return {"transfer": "basic", "objects": objects}

    def lfs_upload(self, body: bytes, oid: str) -> dict:
        if hashlib.sha256(body).hexdigest() != oid:
            raise Refused(400, "the content is not that of the object id")
        self.hub.add_blob(body, lfs=True)
        return {}

    def commit(self, body: bytes, repo_id: str, revision: str) -> dict:
        repo = self.repo(repo_id, write=True)
        if revision not in repo.branches:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        files = dict(repo.files(revision)[1])
        for operation in map(json.loads, body.splitlines()):
            value = operation["value"]
            if operation["key"] == "file":
                files[value["path"]] = self.hub.add_blob(base64.b64decode(value["content"]), lfs=False)
            elif operation["key"] == "lfsFile":
                if not (self.hub.folder / value["oid"]).exists():
                    raise Refused(400, f"{value['path']} was never uploaded")
                files[value["path"]] = Blob(value["oid"], value["size"], lfs=True)
            elif operation["key"] != "header":
                raise Refused(501, f"the loopback Hub does not know the operation {operation['key']}")
        sha = repo.commit(revision, files)
        return {"commitUrl": f"{self.hub.url}/{repo_id}/commit/{sha}", "commitOid": sha}

    def create_branch(self, body: bytes, repo_id: str, branch: str) -> dict:
        repo = self.repo(repo_id, write=True)
        if branch in repo.branches:
            raise Refused(409, f"{branch} exists already")
        repo.branches[branch] = repo.branches["main"]
        return {}

    def model_info(self, body: bytes, repo_id: str, revision: str | None = None) -> dict:
        repo = self.repo(repo_id)
        sha, files = repo.files(revision or "main")
        siblings = [{"rfilename": path} for path in sorted(files)]
        return {"id": repo_id, "modelId": repo_id, "sha": sha, "private": repo.private, "siblings": siblings}

    def tree(self, body: bytes, repo_id: str, revision: str, path: str | None = None) -> list | tuple:
        _, files = self.repo(repo_id).files(revision)
        recursive = parse_qs(urlsplit(self.path).query).get("recursive", ["false"])[0].lower() in ("true", "1")
        prefix = f"{path}/" if path else ""
        found = [
            {"type": "file", "path": name, "oid": blob.oid, "size": blob.size}
            | ({"lfs": {"oid": blob.oid, "size": blob.size, "pointerSize": 0}} if blob.lfs else {})
            for name, blob in sorted(files.items())
            if name.startswith(prefix) and (recursive or "/" not in name.removeprefix(prefix))
        ]
        if path and not found:
            raise Refused(404, f"{path} does not exist", "EntryNotFound")
        return found

    def resolve(self, body: bytes, repo_id: str, revision: str, path: str) -> tuple:
        sha, files = self.repo(repo_id).files(revision)
        if path not in files:  # with the commit, so that the client remembers it
            raise Refused(404, f"{path} does not exist", "EntryNotFound", sha)
        blob = files[path]
        content = (self.hub.folder / blob.oid).read_bytes()
        headers = {"ETag": f'"{blob.oid}"', "X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
        if blob.lfs:
            headers |= {"X-Linked-Etag": f'"{blob.oid}"', "X-Linked-Size": str(blob.size)}
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(match[1]), int(match[2] or blob.size - 1)
            if first >= blob.size:
                raise Refused(416, "Range Not Satisfiable")
            headers["Content-Range"] = f"bytes {first}-{min(last, blob.size - 1)}/{blob.size}"
            return 206, content[first : last + 1], headers
        return 200, content, headers


ROUTES: tuple[tuple[str, str, Callable], ...] = (
    ("GET", "/api/whoami-v2", Handler.whoami),
    ("GET", "/api/agent-harnesses", Handler.agent_harnesses),
    ("POST", "/api/repos/create", Handler.create_repo),
    ("POST", "/api/validate-yaml", Handler.validate_yaml),
    ("POST", f"/api/models/{REPO}/preupload/(?P<revision>.+)", Handler.preupload),
    ("POST", rf"/{REPO}\.git/info/lfs/objects/batch", Handler.lfs_batch),
    ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", Handler.lfs_upload),
    ("POST", f"/api/models/{REPO}/commit/(?P<revision>.+)", Handler.commit),
    ("POST", f"/api/models/{REPO}/branch/(?P<branch>.+)", Handler.create_branch),
    ("GET", f"/api/models/{REPO}", Handler.model_info),
    ("GET", f"/api/models/{REPO}/revision/(?P<revision>.+)", Handler.model_info),
    ("GET", f"/api/models/{REPO}/tree/(?P<revision>[^/]+)(?:/(?P<path>.+))?", Handler.tree),
    ("GET", f"/{REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", Handler.resolve),
)
