"""The part of the range server that speaks as the Hugging Face Hub does: what `huggingface_hub` and `datasets` ask for.

The data set OWNER/NAME is the bucket `OWNER--NAME`. Every revision is the same one commit, with the tag v3.0.
OWNER/NAME-before is what the data set was called once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlencode

if TYPE_CHECKING:
    from tests.remote.server import Request, StoredObject

Found = tuple[int, bytes, dict[str, str]]
COMMIT = hashlib.sha1(b"the only commit").hexdigest()
_NOTHING: Found = (404, b"{}", {"x-error-code": "EntryNotFound"})


def hub_answer(url: str, buckets: Mapping[str, Mapping[str, StoredObject]], request: Request) -> Found:
    """Status, body and headers."""
    kind, *words = request.path.strip("/").split("/")
    if kind == "api":
        words = words[1:]
    bucket = "--".join(words[:2])
    if bucket.removesuffix("-before") in buckets and bucket.endswith("-before"):
        query = f"?{urlencode(request.query)}" if request.query else ""
        return 307, b"", {"location": quote(request.path.replace("-before/", "/", 1)) + query}
    if bucket not in buckets:
        return 404, b"{}", {"x-error-code": "RepoNotFound"}
    if kind == "api":
        return _api(buckets[bucket], "/".join(words[:2]), words[2:], request)
    return _resolve(url, bucket, buckets[bucket], "/".join(words[4:]))


def _api(files: Mapping[str, StoredObject], name: str, words: Sequence[str], request: Request) -> Found:
    verb, *rest = words or ("revision",)
    if rest[:1] == ["refs"]:  # refs/convert/parquet: nobody has converted it
        return 404, b"{}", {"x-error-code": "RevisionNotFound"}
    if verb == "refs":
        tag = {"name": "v3.0", "ref": "refs/tags/v3.0", "targetCommit": COMMIT}
        branch = {"name": "main", "ref": "refs/heads/main", "targetCommit": COMMIT}
        return _json({"branches": [branch], "tags": [tag], "converts": []})
    if verb == "revision":
        siblings = [{"rfilename": key, "size": len(files[key].data)} for key in sorted(files)]
        return _json({"id": name, "sha": COMMIT, "private": False, "tags": [], "siblings": siblings})
    if verb == "tree":
        return _json(_tree(files, "/".join(rest[1:]), request.query.get("recursive", "").lower() == "true"))
    if verb == "paths-info":
        paths = parse_qs(request.body.decode()).get("paths", [])
        return _json([entry for path in paths for entry in _entry(files, path.strip("/"))])
    return _NOTHING


def _tree(files: Mapping[str, StoredObject], below: str, is_recursive: bool) -> list[dict[str, Any]]:
    start = f"{below}/" if below else ""
    names = [key[len(start) :] for key in sorted(files) if key.startswith(start)]
    if not is_recursive:
        names = sorted({name.split("/")[0] for name in names})
    return [entry for name in names for entry in _entry(files, start + name)]


def _entry(files: Mapping[str, StoredObject], path: str) -> list[dict[str, Any]]:
    found = files.get(path)
    if found is not None:
        return [{"type": "file", "path": path, "size": len(found.data), "oid": found.etag.strip('"')}]
    is_folder = any(key.startswith(f"{path}/") for key in files)
    return [{"type": "directory", "path": path, "size": 0, "oid": COMMIT}] if is_folder else []


def _resolve(url: str, bucket: str, files: Mapping[str, StoredObject], key: str) -> Found:
    """A file's bytes lie on another host, under a signed address."""
    elsewhere = url.replace("127.0.0.1", "localhost")
    found = files.get(key)
    if found is None:
        return _NOTHING
    headers = {
        "location": f"{elsewhere}/{bucket}/{quote(key)}?signature=a%2Fb",
        "x-repo-commit": COMMIT,
        "x-linked-size": str(len(found.data)),
        "x-linked-etag": found.etag,
    }
    return 302, b"", headers


def _json(value: Any) -> Found:
    return 200, json.dumps(value).encode(), {"content-type": "application/json"}
