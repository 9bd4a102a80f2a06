"""Writes the chart's copy of the CustomResourceDefinition: `python charts/copy_crds.py`.

Helm never upgrades what lies in a chart's crds/ folder, so the copy is a template: an upgrade of
the chart brings new fields, and `crds.keep` protects the resources when the chart is removed.
"""

from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[1]
SOURCE: Final = REPOSITORY / "crds" / "fastgendeployments.fastgen.dev.yaml"
TARGET: Final = REPOSITORY / "charts" / "fastgen" / "templates" / "crds.yaml"

NAME_LINE: Final = "  name: fastgendeployments.fastgen.dev\n"
METADATA: Final = """\
  labels:
    {{- include "fastgen.labels" . | nindent 4 }}
  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
"""


def chart_copy(source: str) -> str:
    """The template that renders to `source` with the chart's labels."""
    if "{{" in source:
        raise ValueError(f"{SOURCE.name} must not hold {{{{, which Helm would take for its own")
    if source.count(NAME_LINE) != 1:
        raise ValueError(f"{SOURCE.name} must hold the line {NAME_LINE!r} once")
    definition = source[source.index("apiVersion:") :].replace(NAME_LINE, NAME_LINE + METADATA)
    return (
        "{{- /* Written by `make chart` from crds/; edit there. */}}\n"
        "{{- if .Values.crds.enabled }}\n"
        f"{definition}"
        "{{- end }}\n"
    )


if __name__ == "__main__":
    TARGET.write_text(chart_copy(SOURCE.read_text()))
