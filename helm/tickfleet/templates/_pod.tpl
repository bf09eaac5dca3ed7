{{/* Common parts of schedulers, workers, gateways, the exporter and the notifier. */}}

{{/* A pod template. Takes root, component (scheduler, worker, gateway, exporter or notifier), pool (for workers), spec
     (the values), selector (labels as text) and env (further variables as text). Also takes, if they differ from those
     of a scheduler: args, port, metricsPort (if metrics have their own port), probes (kind → path), scheme (of probes),
     volumes and mounts (as text). */}}
{{- define "tickfleet.podTemplate" -}}
{{- $root := .root -}}
{{- $spec := .spec -}}
{{- $values := .root.Values -}}
{{- $context := include "tickfleet.overlay" (dict "base" $values.securityContext "over" $spec.securityContext) -}}
metadata:
  labels:
    {{- .selector | nindent 4 }}
    app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
    {{- with merge (dict) $spec.podLabels $values.commonLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: {{ .component }}
    {{- if and $values.config.rollOnChange (not $values.config.existingConfigMap) }}
    checksum/config: {{ include "tickfleet.configFiles" $root | sha256sum }}
    {{- end }}
    {{- with $values.redis.url }}
    # The hash does not cover user and password: many users can read annotations, and the hash would help to guess them.
    checksum/redis: {{ regexReplaceAll "[?].*" (regexReplaceAll "//.*@" . "//") "" | sha256sum }}
    {{- end }}
    {{- with merge (dict) $spec.podAnnotations $values.commonAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- with $values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  serviceAccountName: {{ include "tickfleet.serviceAccountName" $root }}
  # No container uses the Kubernetes API.
  automountServiceAccountToken: false
  # Environment variables of Services could be mistaken for settings.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ int $spec.terminationGracePeriodSeconds }}
  securityContext:
    {{- include "tickfleet.overlay" (dict "base" $values.podSecurityContext "over" $spec.podSecurityContext) | fromJson | toYaml | nindent 4 }}
  {{- if kindIs "bool" $spec.hostUsers }}
  hostUsers: {{ $spec.hostUsers }}
  {{- end }}
  {{- if $spec.shareProcessNamespace }}
  shareProcessNamespace: true
  {{- end }}
  {{- with $spec.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with $spec.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $values.topologySpread.topologyKeys }}
  topologySpreadConstraints:
    {{- range . }}
    - topologyKey: {{ . }}
      maxSkew: {{ int $values.topologySpread.maxSkew }}
      whenUnsatisfiable: {{ $values.topologySpread.whenUnsatisfiable }}
      labelSelector:
        matchLabels:
          {{- $.selector | nindent 10 }}
      # During a rollout, old pods do not count.
      matchLabelKeys: [pod-template-hash]
    {{- end }}
  {{- end }}
  {{- with $spec.dnsPolicy }}
  dnsPolicy: {{ . }}
  {{- end }}
  {{- range $key := list "dnsConfig" "hostAliases" "nodeSelector" "tolerations" "affinity" "initContainers" }}
  {{- with get $spec $key }}
  {{ $key }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  containers:
    - name: {{ .component }}
      image: {{ include "tickfleet.image" (dict "image" $values.image "tag" $root.Chart.AppVersion) }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      args: {{ default (list .component) .args | toJson }}
      env:
        {{- $own := include "tickfleet.commonEnv" . | fromYamlArray }}
        {{- if ne .component "gateway" }}
        {{- $own = append $own (dict "name" "TICKFLEET_HTTP_ADDRESS" "value" (include "tickfleet.address" (dict "host" $values.http.host "port" $values.http.port))) }}
        {{- end }}
        {{- with .env }}
        {{- $own = concat $own (fromYamlArray .) }}
        {{- end }}
        {{- include "tickfleet.envOnce" (concat $own $values.env $spec.env) | nindent 8 }}
      {{- with .envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - name: http
          containerPort: {{ default $values.http.port .port | int }}
          protocol: TCP
        {{- with .metricsPort }}
        - name: metrics
          containerPort: {{ int . }}
          protocol: TCP
        {{- end }}
      {{- with $spec.lifecycle }}
      lifecycle:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- $scheme := .scheme }}
      {{- range $probe, $path := default (dict "startup" "/startupz" "liveness" "/livez" "readiness" "/readyz") .probes }}
      {{ $probe }}Probe:
        httpGet: {path: {{ $path }}, port: http{{ with $scheme }}, scheme: {{ . }}{{ end }}}
        {{- $times := get $values.probes $probe }}
        {{- if and (eq $probe "startup") $spec.toolHosts }}
        # Before it starts, a worker waits for each tool host for as long as the host's startup probe allows.
        {{- $hosts := divf (mulf 120.0 (len $spec.toolHosts)) (float64 $times.periodSeconds) | ceil | int }}
        {{- $times = merge (dict "failureThreshold" (add (int $times.failureThreshold) $hosts)) $times }}
        {{- end }}
        {{- toYaml $times | nindent 8 }}
      {{- end }}
      securityContext:
        {{- $context | fromJson | toYaml | nindent 8 }}
      resources:
        {{- toYaml $spec.resources | nindent 8 }}
      volumeMounts:
        # Mounts the folder instead of single files, so that a change of the ConfigMap replaces all files at once.
        - name: config
          mountPath: {{ $values.config.mountPath }}
          readOnly: true
        {{- if dig "tmp" "enabled" false $spec }}
        - name: tmp
          mountPath: /tmp
        {{- end }}
        {{- if dig "workspaces" "enabled" false $spec }}
        - name: workspaces
          mountPath: /var/lib/tickfleet
        {{- end }}
        {{- if $spec.toolHosts }}
        # Connecting to a socket does not write to its folder.
        - name: tool-hosts
          mountPath: {{ include "tickfleet.toolHostFolder" $root }}
          readOnly: true
        {{- end }}
        {{- with .mounts }}
        {{- . | trim | nindent 8 }}
        {{- end }}
        {{- with include "tickfleet.redisCAMount" $root }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- with $spec.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- range $spec.toolHosts }}
    {{- include "tickfleet.toolHost" (dict "host" . "securityContext" $context) | nindent 4 }}
    {{- end }}
    {{- with $spec.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "tickfleet.configVolume" $root | nindent 4 }}
    {{- if dig "tmp" "enabled" false $spec }}
    - name: tmp
      emptyDir:
        sizeLimit: {{ $spec.tmp.sizeLimit }}
        {{- with $spec.tmp.medium }}
        medium: {{ . }}
        {{- end }}
    {{- end }}
    {{- if dig "workspaces" "enabled" false $spec }}
    - name: workspaces
      {{- if $spec.workspaces.existingClaim }}
      persistentVolumeClaim:
        claimName: {{ $spec.workspaces.existingClaim }}
      {{- else }}
      emptyDir:
        sizeLimit: {{ $spec.workspaces.sizeLimit }}
      {{- end }}
    {{- end }}
    {{- with $spec.toolHosts }}
    {{- include "tickfleet.toolHostVolumes" . | nindent 4 }}
    {{- end }}
    {{- with .volumes }}
    {{- . | trim | nindent 4 }}
    {{- end }}
    {{- with include "tickfleet.redisCAVolume" $root }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with $spec.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* Removes duplicate environment variables. The last one wins, so that the user's variables override the chart's.
     Server-side apply rejects duplicate names. Takes a list. */}}
{{- define "tickfleet.envOnce" -}}
{{- $last := dict -}}
{{- range $at, $variable := . -}}
{{- $_ := set $last $variable.name $at -}}
{{- end -}}
{{- $once := list -}}
{{- range $at, $variable := . -}}
{{- if eq $at (get $last $variable.name) -}}
{{- $once = append $once $variable -}}
{{- end -}}
{{- end -}}
{{- toYaml $once -}}
{{- end -}}

{{/* A Deployment with one pod, for components whose second pod would only be on standby. Takes the arguments of the pod
     template, except selector. */}}
{{- define "tickfleet.deploymentOfOne" -}}
{{- $name := printf "%s-%s" (include "tickfleet.fullname" .root) .component -}}
{{- $selector := printf "%s\napp.kubernetes.io/component: %s" (include "tickfleet.selectorLabels" .root) .component -}}
{{- $about := merge (dict "name" $name "selector" $selector) . -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "tickfleet.metadata" $about | nindent 2 }}
spec:
  replicas: 1
  revisionHistoryLimit: 5
  # A new pod would wait for the lease of the old one, or could not open the file.
  strategy: {type: Recreate}
  selector:
    matchLabels:
      {{- $selector | nindent 6 }}
  template:
    {{- include "tickfleet.podTemplate" $about | nindent 4 }}
{{- end -}}

{{/* An address to listen on. Takes host and port. */}}
{{- define "tickfleet.address" -}}
{{- printf "%s:%d" (ternary (printf "[%s]" .host) .host (contains ":" .host)) (int .port) -}}
{{- end -}}

{{/* A PodDisruptionBudget. Takes root, name, component, budget and selector. */}}
{{- define "tickfleet.podDisruptionBudget" -}}
{{- $most := .budget.maxUnavailable | toString -}}
{{- $least := .budget.minAvailable | toString -}}
{{- if eq (empty $most) (empty $least) -}}
{{- fail (printf "%s: podDisruptionBudget needs one of maxUnavailable and minAvailable; leave the other empty" .name) -}}
{{- end -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "tickfleet.metadata" . | nindent 2 }}
spec:
  {{- if $most }}
  maxUnavailable: {{ .budget.maxUnavailable }}
  {{- else }}
  minAvailable: {{ .budget.minAvailable }}
  {{- end }}
  # If Redis is unavailable, pods are not ready. They must not block the drain of a node.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- .selector | nindent 6 }}
{{- end -}}
