{{/* Names, labels, image. */}}

{{- define "tickfleet.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The labels that select all pods of the release. */}}
{{- define "tickfleet.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tickfleet.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "tickfleet.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The metadata of an object. Takes root and name, and optionally component, labels, annotations and namespace. */}}
{{- define "tickfleet.metadata" -}}
name: {{ .name }}
namespace: {{ .namespace | default .root.Release.Namespace }}
labels:
  {{- include "tickfleet.labels" .root | nindent 2 }}
  {{- with .component }}
  app.kubernetes.io/component: {{ . }}
  {{- end }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "tickfleet.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tickfleet.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* An image reference. Takes image ({registry, repository, tag, digest}) and tag (the default). */}}
{{- define "tickfleet.image" -}}
{{- $repository := ternary (printf "%s/%s" .image.registry .image.repository) .image.repository (ne .image.registry "") -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .tag .image.tag | toString) -}}
{{- end -}}
{{- end -}}

{{/* The label selector of this fleet's series, without braces. */}}
{{- define "tickfleet.selector" -}}
{{- $own := printf "namespace=%q,job=~\"%s-(scheduler|worker)\"" .Release.Namespace (include "tickfleet.fullname" .) -}}
{{- default $own .Values.monitoring.selector -}}
{{- end -}}

{{/* Converts a duration of the configuration (250ms, 5s, 2m, 1h, 7d) to seconds. Takes text and name. */}}
{{- define "tickfleet.seconds" -}}
{{- $text := .text | toString -}}
{{- if not (regexMatch "^[0-9]+ *(ms|s|m|h|d)$" $text) -}}
{{- fail (printf "%s: found %q; expected a duration such as 250ms, 5s, 2m or 1h" .name $text) -}}
{{- end -}}
{{- $number := regexFind "^[0-9]+" $text | float64 -}}
{{- $unit := regexFind "(ms|s|m|h|d)$" $text -}}
{{- mulf $number (get (dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0) $unit) -}}
{{- end -}}

{{/* Merges .over into .base, mappings key by key. All other values, including false, 0 and empty ones, replace the
     value of .base. Returns JSON. */}}
{{- define "tickfleet.overlay" -}}
{{- $base := deepCopy .base -}}
{{- range $key, $value := .over -}}
{{- if and (kindIs "map" $value) (kindIs "map" (get $base $key)) -}}
{{- $_ := set $base $key (include "tickfleet.overlay" (dict "base" (get $base $key) "over" $value) | fromJson) -}}
{{- else -}}
{{- $_ := set $base $key $value -}}
{{- end -}}
{{- end -}}
{{- toJson $base -}}
{{- end -}}
