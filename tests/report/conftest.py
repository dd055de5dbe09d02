import pytest

FOG, SNOW = ("fog", 5), ("snow", 5)


@pytest.fixture
def seeded(make_run):
    """Make a run on fog and snow with a number of errors on fog, a seed and more of a manifest."""

    def make(method, wrong, seed, **manifest):
        run = make_run(method, {FOG: wrong, SNOW: 4})
        run.manifest.update(seed=seed, **manifest)
        return run

    return make
