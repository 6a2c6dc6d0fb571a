import pickle
import threading

import numpy as np
import pytest

from packcore.pool import Pool

SHAPE, DTYPE = (64, 100), np.dtype("int32")


def take(pool, value):
    array = pool.empty(SHAPE, DTYPE)
    array[:] = value
    return array


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16"])
@pytest.mark.parametrize("shape", [(0,), (3,), (2, 5), (1, 2, 3)])
def test_arrays_are_like_those_of_numpy(shape, dtype):
    pool = Pool(8)
    for _ in range(2):
        array = pool.empty(shape, np.dtype(dtype))
        assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
        assert array.flags.c_contiguous
        assert array.flags.aligned
        assert array.flags.writeable
        array[...] = 7
        assert (pickle.loads(pickle.dumps(array)) == 7).all()
        del array


def test_memory_is_used_again_once_it_is_free():
    pool = Pool(8)
    first = take(pool, 1)
    address = first.ctypes.data
    second = take(pool, 2)
    assert second.ctypes.data != address
    del first
    third = take(pool, 3)
    assert third.ctypes.data == address
    assert (second == 2).all()
    assert (third == 3).all()


HOLDERS = {
    "a row": lambda array: array[3],
    "a column": lambda array: array[:, 2],
    "a view of a view": lambda array: array.reshape(-1)[5:].view(np.uint8),
    "a buffer": memoryview,
    "frombuffer": lambda array: np.frombuffer(array, np.int32),
    "a flat iterator": lambda array: array.flat,
    "an interface": lambda array: np.asarray(Interface(array)),
}


class Interface:
    def __init__(self, array):
        self.array = array
        self.__array_interface__ = array.__array_interface__


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_memory_that_somebody_holds_is_not_used_again(hold):
    pool = Pool(8)
    array = take(pool, 1)
    address = array.ctypes.data
    held = hold(array)
    del array
    assert take(pool, 2).ctypes.data != address
    del held
    pair = [take(pool, 3), take(pool, 4)]
    assert address in [array.ctypes.data for array in pair]


def test_a_larger_array_gets_new_memory_and_a_smaller_one_part_of_it():
    pool = Pool(8)
    address = take(pool, 1).ctypes.data
    small = pool.empty((2,), DTYPE)
    assert small.ctypes.data == address
    del small
    large = pool.empty((1000, 100), DTYPE)
    large[:] = 5
    assert large.shape == (1000, 100)


def test_no_more_memory_is_kept_than_was_asked_for():
    pool = Pool(2)
    arrays = [take(pool, number) for number in range(5)]
    assert [int(array[0, 0]) for array in arrays] == list(range(5))
    kept = {array.ctypes.data for array in arrays[3:]}
    del arrays
    again = [take(pool, number) for number in range(2)]
    assert {array.ctypes.data for array in again} == kept


def test_whoever_keeps_everything_gets_new_memory_each_time():
    pool = Pool(50)
    arrays = [take(pool, number) for number in range(60)]
    assert [int(array[-1, -1]) for array in arrays] == list(range(60))


def test_arrays_outlive_their_pool():
    pool = Pool(8)
    array = take(pool, 1)
    del pool
    assert (array == 1).all()


def test_threads_never_share_memory():
    pool, wrong = Pool(8), []

    def work(number):
        for turn in range(2000):
            array = take(pool, number * 10_000 + turn)
            if (array != number * 10_000 + turn).any():
                wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
