"""pyarrow: its S3 file system alone, and Parquet data sets through it."""

import concurrent.futures

import pyarrow
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet
import pytest

from content import content, small_objects
from server import ACCESS_KEY, REGION, SECRET_KEY


@pytest.fixture
def arrow(aws):
    options = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "region": REGION}
    if aws.certificates:
        options["tls_ca_file_path"] = str(aws.certificates.authority)
    return pyarrow.fs.S3FileSystem(endpoint_override=aws.host, scheme=aws.scheme, **options)


def write(arrow, path, body):
    with arrow.open_output_stream(path) as stream:
        stream.write(body)


def read(arrow, path):
    with arrow.open_input_stream(path) as stream:
        return stream.read()


def test_a_large_file_comes_back_byte_for_byte_whole_and_in_pieces(arrow, aws, bucket):
    body = content(aws.load.large_bytes, "pyarrow")
    write(arrow, f"{bucket}/large", body)
    assert read(arrow, f"{bucket}/large") == body
    with arrow.open_input_file(f"{bucket}/large") as file:
        assert file.size() == len(body)
        assert file.read_at(1000, len(body) - 500) == body[-500:]
        assert file.read_at(70_000, 65_000) == body[65_000:135_000]


def test_many_small_files_come_back_and_are_listed_and_deleted(arrow, aws, bucket):
    objects = dict(small_objects(aws.load.small_objects))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda item: write(arrow, f"{bucket}/{item[0]}", item[1]), objects.items()))
        assert dict(pool.map(lambda key: (key, read(arrow, f"{bucket}/{key}")), objects)) == objects
    infos = arrow.get_file_info(pyarrow.fs.FileSelector(bucket, recursive=True))
    sizes = {info.path.partition("/")[2]: info.size for info in infos if info.is_file}
    assert sizes == {key: len(body) for key, body in objects.items()}
    folders = arrow.get_file_info(pyarrow.fs.FileSelector(f"{bucket}/many"))
    assert sorted(info.base_name for info in folders) == [str(n) for n in range(7)]
    arrow.delete_dir_contents(bucket)
    assert arrow.get_file_info(pyarrow.fs.FileSelector(bucket)) == []


def test_folders_copies_and_moves_behave_as_in_a_file_system(arrow, bucket):
    arrow.create_dir(f"{bucket}/folder/inner")
    assert arrow.get_file_info(f"{bucket}/folder/inner").type == pyarrow.fs.FileType.Directory
    write(arrow, f"{bucket}/folder/a", b"1")
    arrow.copy_file(f"{bucket}/folder/a", f"{bucket}/folder/b")
    arrow.move(f"{bucket}/folder/b", f"{bucket}/c")
    assert read(arrow, f"{bucket}/c") == b"1"
    assert arrow.get_file_info(f"{bucket}/folder/b").type == pyarrow.fs.FileType.NotFound
    write(arrow, f"{bucket}/empty", b"")
    assert read(arrow, f"{bucket}/empty") == b""


def test_a_partitioned_parquet_data_set_comes_back(arrow, bucket):
    table = pyarrow.table({"part": [n % 3 for n in range(3000)], "value": list(range(3000))})
    pyarrow.parquet.write_to_dataset(table, f"{bucket}/set", partition_cols=["part"], filesystem=arrow)
    dataset = pyarrow.dataset.dataset(f"{bucket}/set", filesystem=arrow, partitioning="hive")
    assert sorted(dataset.to_table(filter=pyarrow.dataset.field("part") == 1)["value"].to_pylist()) == list(
        range(1, 3000, 3)
    )


def test_a_bucket_that_is_not_there_is_not_found(arrow):
    assert arrow.get_file_info("no-such-bucket-here").type == pyarrow.fs.FileType.NotFound
    with pytest.raises(OSError):
        read(arrow, "no-such-bucket-here/k")
