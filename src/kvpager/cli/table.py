"""A plain text table. Knows strings and widths, nothing else."""

from collections.abc import Container, Sequence


def format_table(rows: Sequence[Sequence[str]], header: Sequence[str], numeric: Container[int] = ()) -> str:
    """Columns two spaces apart under ``header``; the columns in ``numeric`` are aligned to the right."""
    lines = [list(header), *[list(row) for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in numeric else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
