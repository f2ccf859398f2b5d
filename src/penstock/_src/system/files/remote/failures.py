"""What a client raises, as one of our errors: with the URL, the reason and what to do next, without debug dumps."""

from __future__ import annotations

import re

from penstock.errors import (
    RemoteChanged,
    RemoteDenied,
    RemoteError,
    RemoteMissing,
    RemoteThrottled,
    RemoteUnavailable,
)

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]{1,60})</Code>")
_SPENT = re.compile(r"after (\d+) retries")
_KEY_CODES = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired",
              "AuthenticationFailed", "RequestTimeTooSkewed")  # fmt: skip
_CREDENTIALS_HINT = {
    "s3": "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the profile of AWS_PROFILE",
    "gs": "check GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`",
    "az": "check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_SAS_TOKEN)",
    "hf": "check HF_TOKEN, or run `hf auth login`; a gated data set also asks for consent on its page",
}


def remote_error(error: BaseException, url: str, *, is_signed: bool = True) -> RemoteError:
    """The error of ours for what a client raised about a URL."""
    text = str(error).split("\n\nDebug source")[0].strip()
    status = int(found[1]) if (found := _STATUS.search(text)) else 0
    code = found[1] if (found := _CODE.search(text)) else ""
    kind = type(error).__name__
    scheme = url.partition("://")[0]
    if code == "NoSuchBucket" or "ContainerNotFound" in text or "The specified bucket does not exist" in text:
        bucket = "/".join(url.split("/")[:3])
        return RemoteError(f"{url}: there is no bucket {bucket}", url=url, hint="check its name and the endpoint")
    if isinstance(error, FileNotFoundError) or status == 404:
        return RemoteMissing(url)
    if "credential provider: " in text:  # what gave keys until now
        return RemoteDenied(f"{url}: {text.rpartition('credential provider: ')[2]}", url=url)
    if status == 401 or kind == "UnauthenticatedError" or code in _KEY_CODES:
        reason = f"the credentials are refused ({code or status or 401})"
        return RemoteDenied(f"{url}: {reason}", url=url, hint=_CREDENTIALS_HINT.get(scheme))
    if status == 403 or kind == "PermissionDeniedError":
        return _denied(url, scheme, code, is_signed)
    if status == 412 or kind in ("PreconditionError", "NotModifiedError"):
        return changed(url)
    if kind == "NotSupportedError":
        return RemoteError(
            f"{url}: the server gives whole files only, and penstock reads parts of them",
            url=url,
            hint="copy it to a local disk, or serve it by a web server that knows ranges (nginx, Apache)",
        )
    return _transport_error(text, url, status, code)


def _denied(url: str, scheme: str, code: str, is_signed: bool) -> RemoteDenied:
    if is_signed:
        reason, hint = "these credentials may not read or list it", "ask for the right to list the bucket and to read"
    else:
        reason = "it is not public, and no credentials were found"
        hint = _CREDENTIALS_HINT.get(scheme, "ask for access")
        if scheme in ("s3", "gs", "az"):
            hint += "; PENSTOCK_CLOUD_METADATA=1 asks the metadata service of the cloud"
    return RemoteDenied(f"{url}: {reason} ({code or 403})", url=url, hint=hint)


def _transport_error(text: str, url: str, status: int, code: str) -> RemoteError:
    spent = f" after {found[1]} retries" if (found := _SPENT.search(text)) else ""
    if status in (429, 503) or code in ("SlowDown", "TooManyRequests", "RequestLimitExceeded", "ServerBusy"):
        return RemoteThrottled(
            f"{url}: the store asks to slow down ({code or status}){spent}",
            url=url,
            hint="fewer requests at once (PENSTOCK_REMOTE_IN_FLIGHT=16), or try again later",
        )
    if is_cut(text):
        return cut_body(url, text.splitlines()[0] if text else "")
    if "without LOCATION" in text or status == 301 or code in ("PermanentRedirect", "AuthorizationHeaderMalformed"):
        return RemoteError(f"{url}: the bucket lies in another region", url=url, hint="set AWS_REGION to its region")
    if status:
        return RemoteUnavailable(
            f"{url}: the store answers {status}{f' ({code})' if code else ''}{spent}", url=url, hint="try again later"
        )
    reason = "timed out" if "timed out" in text or "Timeout" in text else _last_clause(text)
    hint = "check the address, the network and (for other stores than AWS) AWS_ENDPOINT_URL"
    return RemoteUnavailable(f"{url}: cannot be reached{spent}: {reason}", url=url, hint=hint)


def is_cut(text: str) -> bool:
    """Whether an answer ended before its length, as a client says it."""
    return "body error" in text or "decoding response body" in text


def changed(url: str) -> RemoteChanged:
    """The object is another one than when it was opened."""
    return RemoteChanged(
        f"{url}: it was replaced since it was opened", url=url, hint="open it again; do not write to a set in training"
    )


def cut_body(url: str, reason: str) -> RemoteUnavailable:
    """An answer ended before its length, at every attempt."""
    return RemoteUnavailable(
        f"{url}: the answer was cut at every attempt ({reason})", url=url, hint="check the network and any proxy"
    )


def _last_clause(text: str) -> str:
    """The end of a message, which is its cause; addresses and times before it are noise."""
    return text.splitlines()[0].rsplit(" - ", 1)[-1][:200] if text else "no reason given"
