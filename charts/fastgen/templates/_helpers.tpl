{{- define "fastgen.name" -}}
{{ default .Release.Name .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "fastgen.serviceAccountName" -}}
{{ default (include "fastgen.name" .) .Values.serviceAccount.name }}
{{- end }}

{{- define "fastgen.selectorLabels" -}}
app.kubernetes.io/name: fastgen-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "fastgen.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: fastgen
{{ include "fastgen.selectorLabels" . }}
{{- end }}

{{- define "fastgen.controlImage" -}}
{{ required "images.control is not set: `make images` pushes the images and prints their references as JSON; give the one named control, --set images.control=REFERENCE" .Values.images.control }}
{{- end }}

{{- define "fastgen.runtimeImage" -}}
{{ required "images.runtime is not set: `make images` pushes the images and prints their references as JSON; give the one named runtime, --set images.runtime=REFERENCE" .Values.images.runtime }}
{{- end }}

{{- define "fastgen.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "fastgen.monitoringLabels" -}}
{{- $pairs := list }}
{{- range $name, $value := dig "monitoring" "labels" dict .Values.AsMap }}
{{- $pairs = append $pairs (printf "%s=%s" $name $value) }}
{{- end }}
{{- join "," $pairs }}
{{- end }}

{{- define "fastgen.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "fastgen.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
