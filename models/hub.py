"""Model files of repositories on the Hugging Face Hub: which one is meant, fetching it, and what
was fetched before. Files lie in the cache that huggingface_hub keeps for all programs."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..graph.errors import DownloadError, RequestError

# What is taken where nobody says which, the first of these that there is.
PREFERRED = ("Q4_K_M", "Q8_0")
_NOT_MODELS = ("mmproj", "imatrix", "mtp-")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_QUANT = re.compile(
    r"(?<![A-Za-z0-9])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|BF16|F16|F32|MXFP4\w*))(?:-\d{5}-of-\d{5})?\.gguf$",
    re.IGNORECASE,
)
_REPO = re.compile(r"[\w.-]+/[\w.-]+")
_SUM = re.compile(r"[0-9a-f]{64}")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Wanted:
    """A model of the Hub: repository, and a quantisation ("Q8_0"), a file's path ("q/a.gguf") or ""
    for the usual one."""

    repo: str
    tag: str = ""

    @classmethod
    def read(cls, text: str) -> Wanted:
        """From "OWNER/NAME" or "OWNER/NAME:TAG". Raises ValueError."""
        repo, _, tag = text.removeprefix("hf.co/").partition(":")
        if not _REPO.fullmatch(repo) or ".." in repo:
            raise ValueError(f"expected OWNER/NAME or OWNER/NAME:QUANT, got {text!r}")
        return cls(repo, tag)

    def __str__(self) -> str:
        return f"{self.repo}:{self.tag}" if self.tag else self.repo


@dataclass(frozen=True)
class CachedModel:
    """A model in the cache: its name for `-hf`, its first file, all files with the blobs that they
    link to, bytes of these."""

    name: str
    path: Path
    files: tuple[tuple[Path, Path], ...]
    nbytes: int


def choose(paths: Iterable[str], tag: str = "") -> list[str]:
    """The files of a repository that are meant: a model's file, or all its shards in order; none
    where there is no such model.

    tag: a quantisation, found in a file's path before a "." or "-", or the path itself; without one
    Q4_K_M, else Q8_0, else the first. Projectors and importance matrices are no models. These are
    llama.cpp's rules, but for a tag inside a longer one (F16 in BF16)."""
    models = [p for p in sorted(paths) if is_model(p)]
    if tag.endswith(".gguf"):
        return _with_shards(tag, models) if tag in models else []
    for wanted in (tag,) if tag else PREFERRED:
        pattern = re.compile(rf"(?<![A-Za-z0-9]){re.escape(wanted)}[.-]", re.IGNORECASE)
        found = [p for p in models if pattern.search(p) and _starts(p)]
        if found:
            return _with_shards(found[0], models)
    first = [p for p in models if _starts(p)]
    return _with_shards(first[0], models) if first and not tag else []


def is_model(path: str) -> bool:
    """Whether a file's name is that of a model."""
    name = path.rsplit("/", 1)[-1]
    return name.endswith(".gguf") and not any(part in name for part in _NOT_MODELS)


def model_name(repo: str, path: str) -> str:
    """How `-hf` calls the model of a file."""
    found = _QUANT.search(path)
    return f"{repo}:{found[1]}" if found else f"{repo}:{path}"


class Hub:
    """The Hub, and the cache of what was fetched from it."""

    def __init__(self, endpoint: str | None = None, cache: Path | None = None) -> None:
        """endpoint: its address, by default HF_ENDPOINT or huggingface.co; cache: the folder, by
        default HF_HUB_CACHE or the usual one. Raises RequestError without huggingface_hub."""
        try:
            from huggingface_hub import constants
        except ImportError:
            raise RequestError(
                "models from the Hugging Face Hub need the package huggingface_hub; "
                "pip install riverrun[hub]"
            ) from None
        self.endpoint = endpoint or constants.ENDPOINT
        self.cache = cache or Path(constants.HF_HUB_CACHE).expanduser()

    def fetch(self, wanted: Wanted) -> Path:
        """The file of a model, or the first of its shards: from the cache, else fetched, with a
        progress bar where standard error is a terminal. A fetch that was broken off goes on where
        it was; sizes and SHA-256 sums are checked. Without a connection the cache serves, with a
        warning.

        Raises DownloadError for a repository or file that is not there or may not be read, for a
        connection that fails and for a damaged file."""
        try:
            listed = self._listed(wanted.repo)
        except Exception as error:
            cached = self._cached_path(wanted)
            if cached is None or _is_refusal(error):
                raise DownloadError(f"{wanted}: {_explain(error)}") from None
            warnings.warn(
                f"{wanted}: {_explain(error)}; using what was fetched before", stacklevel=2
            )
            return cached
        names = choose(listed, wanted.tag)
        if not names:
            raise DownloadError(_missing(wanted, listed))
        absent = [name for name in names if name not in listed]
        if absent:
            raise DownloadError(f"{wanted}: the repository lacks the shard {absent[0]}")
        try:
            paths = [self._fetch_file(wanted.repo, name, listed[name]) for name in names]
            return paths[0]
        except DownloadError:
            raise
        except Exception as error:
            raise DownloadError(f"{wanted}: {_explain(error)}") from None

    def cached(self) -> list[CachedModel]:
        """The models in the cache, by name."""
        from huggingface_hub import scan_cache_dir

        if not self.cache.is_dir():
            return []
        found: dict[str, CachedModel] = {}
        for repo in scan_cache_dir(self.cache).repos:
            for revision in repo.revisions:
                paths = {
                    f.file_path.relative_to(revision.snapshot_path).as_posix(): f
                    for f in revision.files
                }
                for path in paths:
                    if not (is_model(path) and _starts(path)):
                        continue
                    parts = [paths[p] for p in _with_shards(path, list(paths)) if p in paths]
                    name = model_name(repo.repo_id, path)
                    if name in found:
                        name = f"{repo.repo_id}:{path}"
                    files = tuple((f.file_path, f.blob_path) for f in parts)
                    nbytes = sum(f.size_on_disk for f in parts)
                    found[name] = CachedModel(name, files[0][0], files, nbytes)
        return [found[name] for name in sorted(found)]

    def remove(self, name: str) -> list[CachedModel]:
        """Delete a model of the cache, by a name that `cached` gives or, for all of a repository,
        by that; what was deleted. Raises RequestError where there is none."""
        models = self.cached()
        gone = [m for m in models if name in (m.name, m.name.partition(":")[0])]
        if not gone:
            there = ", ".join(m.name for m in models) or "nothing"
            raise RequestError(f"there is no model {name!r} in the cache; it holds {there}")
        removed = {path for model in gone for path, _ in model.files}
        kept = {blob for m in models for path, blob in m.files if path not in removed}
        for path, blob in (file for model in gone for file in model.files):
            path.unlink(missing_ok=True)
            if blob not in kept:
                blob.unlink(missing_ok=True)
        for folder in {_repo_folder(path, self.cache) for path in removed}:
            if not any(p.is_file() for p in (folder / "snapshots").rglob("*")):
                shutil.rmtree(folder, ignore_errors=True)
        return gone

    def _listed(self, repo: str) -> dict[str, Any]:
        """The files of a repository with their sizes and sums."""
        from huggingface_hub import HfApi

        info = HfApi(endpoint=self.endpoint).model_info(repo, files_metadata=True)
        return {sibling.rfilename: sibling for sibling in info.siblings or []}

    def _cached_path(self, wanted: Wanted) -> Path | None:
        """The newest file of a model that was fetched before."""
        models = [m for m in self.cached() if m.name.partition(":")[0] == wanted.repo]
        paths = {_path_in_repo(m.path, self.cache): m.path for m in models}
        names = choose(paths, wanted.tag)
        return paths[names[0]] if names else None

    def _fetch_file(self, repo: str, name: str, listed: Any) -> Path:
        """A file's path in the cache. What the Hub knows the sum of is fetched here, since the
        library begins anew where a fetch was broken off, and put where the library finds it."""
        from huggingface_hub import hf_hub_download
        from huggingface_hub.file_download import repo_folder_name

        if listed.lfs is not None:
            if not _SUM.fullmatch(listed.lfs.sha256):
                raise DownloadError(
                    f"{repo}/{name}: expected a SHA-256 sum, got {listed.lfs.sha256!r} from "
                    f"{self.endpoint}"
                )
            folder = self.cache / repo_folder_name(repo_id=repo, repo_type="model") / "blobs"
            blob = folder / listed.lfs.sha256
            if not blob.exists():
                folder.mkdir(parents=True, exist_ok=True)
                self._fetch_blob(repo, name, blob, listed.lfs.size)
        return Path(hf_hub_download(repo, name, cache_dir=self.cache, endpoint=self.endpoint))

    def _fetch_blob(self, repo: str, name: str, blob: Path, size: int) -> None:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers

        part = blob.with_name(f"{blob.name}.riverrun.part")
        with locked(part) as file:
            held = file.seek(0, os.SEEK_END)
            if held > size:
                held = file.truncate(file.seek(0))
            free = shutil.disk_usage(blob.parent).free
            if size - held > free:
                raise DownloadError(
                    f"{repo}/{name}: {size - held} bytes are missing, and {blob.parent} has room "
                    f"for {free}; make room (riverrun models remove) or set HF_HUB_CACHE"
                )
            url = hf_hub_url(repo, name, endpoint=self.endpoint)
            http_get(
                url,
                file,  # type: ignore[arg-type]
                resume_size=held,
                headers=build_hf_headers(),
                expected_size=size,
                displayed_filename=name.rsplit("/", 1)[-1],
            )
            file.flush()
            found = _sha256(file)
            if found != blob.name:
                part.unlink()
                raise DownloadError(
                    f"{repo}/{name}: expected the SHA-256 sum {blob.name}, got {found}; what was "
                    "fetched was damaged and is deleted: fetch it again"
                )
            os.replace(part, blob)


def locked(part: Path) -> IO[bytes]:
    """The part of a file that was fetched so far, for this process alone."""
    file = part.open("r+b" if part.exists() else "w+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise DownloadError(f"{part}: another process is fetching this file; wait for it") from None
    return file


def _sha256(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    file.seek(0)
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def _starts(path: str) -> bool:
    """Whether a file is a whole model or the first shard of one."""
    shard = _SHARD.search(path)
    return shard is None or int(shard[1]) == 1


def _with_shards(path: str, paths: Sequence[str]) -> list[str]:
    """A file, or all shards of its model."""
    shard = _SHARD.search(path)
    if shard is None:
        return [path]
    head, count = path[: shard.start()], int(shard[2])
    return [f"{head}-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]


def _repo_folder(path: Path, cache: Path) -> Path:
    return cache / path.relative_to(cache).parts[0]


def _path_in_repo(path: Path, cache: Path) -> str:
    """CACHE/models--A--B/snapshots/COMMIT/q/a.gguf is q/a.gguf."""
    return "/".join(path.relative_to(cache).parts[3:])


def _missing(wanted: Wanted, listed: Iterable[str]) -> str:
    models = [p for p in sorted(listed) if is_model(p) and _starts(p)]
    if not models:
        return f"{wanted.repo}: there is no GGUF file in this repository; choose one that has some"
    names = [model_name(wanted.repo, p).partition(":")[2] for p in models]
    return f"{wanted.repo}: there is no {wanted.tag!r}; there are {', '.join(names)}"


def _is_refusal(error: Exception) -> bool:
    """Whether the Hub itself says no, other than by being out of order."""
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", 500)
    return status < 500


def _explain(error: Exception) -> str:
    """An error of the Hub or of the connection in one line."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return "access has to be granted on the Hub first; then set HF_TOKEN"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "no such repository, or a private one; check the name, or set HF_TOKEN"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return "offline (HF_HUB_OFFLINE)"
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"
