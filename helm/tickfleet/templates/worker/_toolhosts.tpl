{{/* Tool hosts: containers beside a worker that run Python tools. Each listens on a Unix socket in a folder that it
     shares with the worker, and the worker dials. */}}

{{/* The folder of the sockets. */}}
{{- define "tickfleet.toolHostFolder" -}}/run/tickfleet{{- end -}}

{{/* A tool host's values with the defaults laid under, as JSON: a list's items cannot have theirs in values.yaml. */}}
{{- define "tickfleet.toolHostValues" -}}
{{- $host := dict "imagePullPolicy" "IfNotPresent" "path" list "processes" 2 "concurrency" 8 "command" list "env" list "envFrom" list
  "resources" (dict "requests" (dict "cpu" "250m" "memory" "256Mi") "limits" (dict "memory" "1Gi")) -}}
{{- range $key, $value := . -}}
{{- $_ := set $host $key $value -}}
{{- end -}}
{{- toJson $host -}}
{{- end -}}

{{/* Fails on two hosts of one name, and on entries of tools.yaml that their hosts cannot serve. Takes root, name and
     pool. */}}
{{- define "tickfleet.checkToolHosts" -}}
{{- $about := . -}}
{{- $hosts := dict -}}
{{- range .pool.toolHosts -}}
{{- if hasKey $hosts .name -}}
{{- fail (printf "worker pool %q: toolHosts has %q twice; each needs its own name for its container and socket" $about.name .name) -}}
{{- end -}}
{{- $_ := set $hosts .name (include "tickfleet.toolHostValues" . | fromJson) -}}
{{- end -}}
{{- if not .root.Values.config.existingConfigMap -}}
{{- $folder := printf "%s/" (include "tickfleet.toolHostFolder" .) -}}
{{- range $entry, $def := get (include "tickfleet.toolsFile" .root | fromJson) "python" | default dict -}}
{{- $socket := ternary (get (ternary $def dict (kindIs "map" $def)) "host" | toString) "" (kindIs "map" $def) -}}
{{- if hasPrefix $folder $socket -}}
{{- $host := get $hosts (trimPrefix $folder $socket | trimSuffix ".sock") | default dict -}}
{{- if or (not $host) (not (hasSuffix ".sock" $socket)) -}}
{{- fail (printf "worker pool %q: python.%s.host in tools.yaml is %s, but no tool host listens there; tool hosts: %s" $about.name $entry $socket (keys $hosts | sortAlpha | join ", " | default "none (toolHosts is empty)")) -}}
{{- end -}}
{{- $wanted := get $def "processes" | default 2 | int -}}
{{- if gt $wanted (int $host.processes) -}}
{{- fail (printf "worker pool %q: python.%s in tools.yaml needs %d processes, but tool host %q has %d; make them equal" $about.name $entry $wanted $host.name (int $host.processes)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The container of a tool host; takes host (its values) and securityContext (the worker's, as JSON). It is a plain
     container: Kubernetes 1.27 and 1.28 have no sidecars. So it starts beside the worker, which waits until it listens,
     and is told to end with the worker: then tickfleet.host waits until the worker has closed its connections. */}}
{{- define "tickfleet.toolHost" -}}
{{- $host := include "tickfleet.toolHostValues" .host | fromJson -}}
{{- $folder := include "tickfleet.toolHostFolder" . -}}
{{- $socket := printf "%s/%s.sock" $folder $host.name -}}
- name: tool-host-{{ $host.name }}
  image: {{ $host.image | quote }}
  imagePullPolicy: {{ $host.imagePullPolicy }}
  command:
    {{- if $host.command }}
    {{- toYaml $host.command | nindent 4 }}
    {{- else }}
    - python
    - -m
    - tickfleet.host
    - --listen
    - {{ $socket }}
    - --concurrency
    - {{ int $host.concurrency | quote }}
    # Two more than the worker keeps: it starts a successor before it lets an interpreter go, and asks which tools there
    # are in one of its own.
    - --processes-max
    - {{ add (int $host.processes) 2 | quote }}
    {{- range $host.path }}
    - --path
    - {{ . | quote }}
    {{- end }}
    {{- range $host.modules }}
    - {{ . | quote }}
    {{- end }}
    {{- end }}
  {{- with $host.env }}
  env:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $host.envFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  # The pod is ready when the host listens. Nothing is asked after that: the worker's metrics tell how its tools are.
  startupProbe:
    exec:
      command:
        - python
        - -I
        - -c
        - import os, stat, sys; sys.exit(not stat.S_ISSOCK(os.stat(sys.argv[1]).st_mode))
        - {{ $socket }}
    periodSeconds: 2
    timeoutSeconds: 5
    failureThreshold: 60
  securityContext:
    {{- .securityContext | fromJson | toYaml | nindent 4 }}
  resources:
    {{- toYaml $host.resources | nindent 4 }}
  volumeMounts:
    - name: tool-hosts
      mountPath: {{ $folder }}
    - name: tool-host-{{ $host.name }}-tmp
      mountPath: /tmp
{{- end -}}

{{/* Their volumes; takes the list of hosts. */}}
{{- define "tickfleet.toolHostVolumes" -}}
# Sockets alone: they take no space.
- name: tool-hosts
  emptyDir:
    medium: Memory
    sizeLimit: 1Mi
{{- range . }}
- name: tool-host-{{ .name }}-tmp
  emptyDir:
    sizeLimit: 64Mi
{{- end }}
{{- end -}}
