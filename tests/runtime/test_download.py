"""Downloads: from a server of our own, kept on disk, whole or not at all."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gradlet import Context, Tensor, dtypes
from gradlet.base.errors import ArgumentError, DownloadError, FileFormatError
from gradlet.runtime import download

CONTENT = bytes(range(200))


class Server(ThreadingHTTPServer):
    asked: list[str]


class Answers(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        body = {"/plain": CONTENT, "/packed": gzip.compress(CONTENT), "/short": CONTENT}.get(self.path)
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) + (self.path == "/short")))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server(("127.0.0.1", 0), Answers)
    found.asked = []
    thread = threading.Thread(target=found.serve_forever, args=(0.01,))
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with Context(CACHEDIR=str(tmp_path)):
        yield tmp_path / "downloads"


def url(server: Server, path: str) -> str:
    return f"http://127.0.0.1:{server.server_port}{path}"


def test_a_file_is_loaded_once(server: Server, folder: Path) -> None:
    x = Tensor.from_url(url(server, "/plain"))
    assert (x.dtype, bytes(x.tolist())) == (dtypes.uint8, CONTENT)
    assert Tensor.from_url(url(server, "/plain"), dtype="int32", device="PYTHON").shape == (50,)
    assert server.asked == ["/plain"]
    assert [path.read_bytes() for path in folder.iterdir()] == [CONTENT]


def test_gzip_files(server: Server) -> None:
    assert bytes(Tensor.from_url(url(server, "/packed"), gunzip=True).tolist()) == CONTENT
    assert bytes(Tensor.from_url(url(server, "/packed")).tolist()) == gzip.compress(CONTENT)
    with pytest.raises(FileFormatError, match="/plain is no complete gzip file"):
        Tensor.from_url(url(server, "/plain"), gunzip=True)


def test_without_the_cache(server: Server, folder: Path) -> None:
    with Context(CACHE=0):
        for _ in range(2):
            assert len(download.load(url(server, "/plain"))) == 200
    assert server.asked == ["/plain", "/plain"]
    assert not folder.exists()


def test_hashes(server: Server, folder: Path) -> None:
    good = hashlib.sha256(CONTENT).hexdigest()
    with pytest.raises(DownloadError, match=rf"gave 200 bytes with sha256 {good}, not 0+; .*nothing was kept"):
        Tensor.from_url(url(server, "/plain"), sha256="0" * 64)
    assert not folder.exists()
    assert len(download.load(url(server, "/plain"), sha256=good.upper())) == 200
    (kept,) = folder.iterdir()
    kept.write_bytes(b"damaged")
    assert download.load(url(server, "/plain"), sha256=good) == CONTENT
    assert kept.read_bytes() == CONTENT
    with pytest.raises(ArgumentError, match="sha256 must be 64 hexadecimal digits, got 'abc'"):
        Tensor.from_url(url(server, "/plain"), sha256="abc")


def test_local_files_are_read_anew(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "data.bin"
    for content in (b"first", b"second"):
        path.write_bytes(content)
        assert bytes(Tensor.from_url(path.as_uri()).tolist()) == content
    assert not folder.exists()


def test_network_errors_say_what_happened(server: Server, folder: Path) -> None:
    with pytest.raises(DownloadError, match=r"/missing answers 404 Not Found; check the address"):
        Tensor.from_url(url(server, "/missing"))
    with pytest.raises(
        DownloadError, match=r"/short announced 201 bytes and gave 200: the connection broke|cannot load"
    ):
        Tensor.from_url(url(server, "/short"))
    with pytest.raises(DownloadError, match=r"cannot load http://127.0.0.1:1/x: .*check the address and the network"):
        Tensor.from_url("http://127.0.0.1:1/x")
    with pytest.raises(DownloadError, match="cannot load file:///no/such/file"):
        Tensor.from_url("file:///no/such/file")
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_is_no_error(server: Server, tmp_path: Path) -> None:
    (tmp_path / "downloads").write_text("in the way")
    assert len(download.load(url(server, "/plain"))) == 200


@pytest.mark.parametrize("bad", ["ftp://host/file", "just text", "http:/x", "C:/file"])
def test_other_addresses_are_refused(bad: str) -> None:
    with pytest.raises(ArgumentError, match=r"is no URL that can be loaded; use http://, https:// or file://"):
        Tensor.from_url(bad)
