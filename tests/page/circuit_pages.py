"""What the page of a circuit shows."""

from xml.etree import ElementTree

from decoding import Decoded


def header(found, **options):
    return Decoded(found.to_html(**options)).header


def rows_of(page, kind="edges"):
    rows = page.locator(f"#numbers table.{kind} tbody tr").all()
    return [[cell.inner_text().strip() for cell in row.locator("td").all()] for row in rows]


def saved(page, folder):
    with page.expect_download() as download:
        page.locator("#save-svg").click()
    path = folder / "saved.svg"
    download.value.save_as(path)
    return ElementTree.parse(path).getroot()
