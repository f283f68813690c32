"""What the tests of surveys run."""

from gattn.surveys.run.running import survey

TEXTS = [f"The dog number {n} chased the cat. " * (1 + n % 3) for n in range(10)]


def run(texts, model, out, **options):
    """Run a survey without analyses, which take most of the time."""
    return survey(texts, model, out=out, **{"analyses": [], "progress": False} | options)


def raiser(error):
    """Make a function that raises an error."""

    def fail(*_, **__):
        raise error

    return fail
