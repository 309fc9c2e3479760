"""The made-up document for every test here, fresh each time."""

import copy
import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("made_up", Path(__file__).with_name("made_up.py"))
_made_up = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_made_up)


@pytest.fixture
def made_up():
    return _made_up


@pytest.fixture
def document():
    return copy.deepcopy(_made_up.DOCUMENT)
