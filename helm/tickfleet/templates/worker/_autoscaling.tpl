{{/* Scale workers by the ready, running and redelivered (suspect) work. Both templates take root, name, component,
     labels and spec. */}}

{{- define "tickfleet.hpa" -}}
{{- $scaling := .spec.autoscaling -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  {{- include "tickfleet.metadata" . | nindent 2 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: {{ .name }}
  minReplicas: {{ int $scaling.minReplicas }}
  maxReplicas: {{ int $scaling.maxReplicas }}
  metrics:
    - type: External
      external:
        metric:
          name: {{ $scaling.hpa.metricName }}
          selector:
            matchLabels:
              {{- toYaml (default (dict "job" (printf "%s-scheduler" (include "tickfleet.fullname" .root))) $scaling.hpa.selector) | nindent 14 }}
        target:
          type: AverageValue
          averageValue: {{ include "tickfleet.workPerPod" .spec | quote }}
  behavior:
    {{- toYaml $scaling.behavior | nindent 4 }}
{{- end -}}

{{- define "tickfleet.keda" -}}
{{- $scaling := .spec.autoscaling -}}
{{- $own := printf "sum(max by (state) (tickfleet_backlog{%s,state=~\"ready|running|suspect\"}))" (include "tickfleet.selector" .root) -}}
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  {{- include "tickfleet.metadata" . | nindent 2 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: {{ .name }}
  minReplicaCount: {{ int $scaling.minReplicas }}
  maxReplicaCount: {{ int $scaling.maxReplicas }}
  pollingInterval: {{ int $scaling.keda.pollingIntervalSeconds }}
  fallback:
    failureThreshold: 3
    replicas: {{ int $scaling.keda.fallbackReplicas }}
    behavior: currentReplicasIfHigher
  advanced:
    horizontalPodAutoscalerConfig:
      behavior:
        {{- toYaml $scaling.behavior | nindent 8 }}
  triggers:
    - type: prometheus
      metadata:
        serverAddress: {{ $scaling.keda.serverAddress | quote }}
        query: {{ default $own $scaling.keda.query | quote }}
        threshold: {{ include "tickfleet.workPerPod" .spec | quote }}
        # An empty result is an error, not zero: while schedulers or Redis are unavailable, the number of workers stays.
        ignoreNullValues: "false"
      {{- with $scaling.keda.authenticationRef }}
      authenticationRef:
        {{- toYaml . | nindent 8 }}
      {{- end }}
{{- end -}}
