import numpy as np
import pytest

from fedsocket_flwr.config import InterfaceSettings
from fedsocket_flwr.datasets.interfaces import build_interface
from fedsocket_flwr.datasets.sensor_interface import EPSILON, SensorPieces
from fedsocket_flwr.errors import ConfigurationError, DataError


def settings(**changes):
    return InterfaceSettings.model_validate({"kind": "sensor_pieces", "width": 32, "norm": None} | changes)


def test_sixteen_numbers_by_hand():
    # One piece of four rows; the norm of (3, 4, 0) is 5 and of (0, 0, 0) is 0.
    window = np.array([[[3.0, 4.0, 0.0], [0.0, 0.0, 0.0], [3.0, 4.0, 0.0], [0.0, 0.0, 0.0]]], dtype=np.float32)
    ((found,),) = SensorPieces({"pieces": 1})(window)
    means, deviations, ranges, differences = found.reshape(4, 4)
    np.testing.assert_allclose(means, [1.5, 2, 0, 2.5])
    np.testing.assert_allclose(np.exp(deviations) - EPSILON, [1.5, 2, 0, 2.5], atol=1e-12)
    np.testing.assert_allclose(np.exp(ranges) - EPSILON, [3, 4, 0, 5], atol=1e-12)
    np.testing.assert_allclose(np.exp(differences) - EPSILON, [3, 4, 0, 5], atol=1e-12)


def test_pieces_follow_time_and_differences_stay_inside_a_piece():
    window = np.repeat(np.arange(8.0), 16).reshape(1, 128, 1) * np.ones(3)
    found = SensorPieces({})(window)
    assert found.shape == (1, 8, 16)
    np.testing.assert_allclose(found[0, :, 0], np.arange(8))
    np.testing.assert_allclose(found[0, :, 4:], np.log(EPSILON), atol=1e-8)


def test_the_interface_gives_tokens_of_its_width():
    interface = build_interface(settings())
    windows = np.random.default_rng(0).normal(size=(5, 128, 3)).astype(np.float32)
    features = interface(windows)
    assert (features.shape, features.dtype.name) == ((5, 8, 32), "float32")
    # Sixteen numbers into 32: the orthogonal map keeps lengths.
    np.testing.assert_allclose(np.linalg.norm(features, axis=2), np.linalg.norm(SensorPieces({})(windows), axis=2), rtol=1e-5)
    np.testing.assert_array_equal(interface(windows[2:3]), features[2:3])
    assert np.isfinite(interface(np.zeros((2, 128, 3), dtype=np.float32))).all()
    assert build_interface(settings(options={"pieces": 4}))(windows).shape == (5, 4, 32)


@pytest.mark.parametrize("shape", [(2, 128), (2, 128, 4), (2, 121, 3), (2, 8, 3)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ConfigurationError, match="interface 'sensor_pieces'"):
        SensorPieces({})(np.zeros(shape))


def test_what_is_no_signal_is_refused():
    with pytest.raises(ConfigurationError, match="takes floats"):
        SensorPieces({})(["a", "b"])
    with pytest.raises(ConfigurationError, match="at least 1"):
        SensorPieces({"pieces": 0})
    broken = np.zeros((1, 128, 3), dtype=np.float32)
    broken[0, 5, 1] = np.nan
    with pytest.raises(DataError, match="not finite"):
        build_interface(settings())(broken)
