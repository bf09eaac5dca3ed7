{{/* Tool hosts: containers that run Python tools next to a worker. Each listens on a Unix socket in a folder that it
     shares with the worker, and the worker connects to it. */}}

{{/* The folder with the sockets. */}}
{{- define "tickfleet.toolHostFolder" -}}/run/tickfleet{{- end -}}

{{/* The values of a tool host with defaults, as JSON. values.yaml cannot contain defaults for the items of a list. */}}
{{- define "tickfleet.toolHostValues" -}}
{{- $host := dict "imagePullPolicy" "IfNotPresent" "path" list "processes" 2 "concurrency" 8 "command" list "env" list "envFrom" list
  "resources" (dict "requests" (dict "cpu" "250m" "memory" "256Mi") "limits" (dict "memory" "1Gi")) -}}
{{- range $key, $value := . -}}
{{- $_ := set $host $key $value -}}
{{- end -}}
{{- toJson $host -}}
{{- end -}}

{{/* Fails on two hosts with the same name, and on entries of tools.yaml that their hosts cannot serve. Takes root, name
     and pool. */}}
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

{{/* The container of a tool host. Takes host (its values) and securityContext (the worker's, as JSON). It is an
     ordinary container, because Kubernetes 1.27 and 1.28 have no sidecars. It starts at the same time as the worker,
     which waits until the host listens. Both receive SIGTERM at the same time, and then tickfleet.host waits until the
     worker has closed its connections. */}}
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
    # Two more than the worker uses for calls: it starts a replacement before it stops an interpreter, and lists the
    # tools in a separate interpreter.
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
  # The pod becomes ready when the host listens. There are no other probes: the worker's metrics report the state of its
  # tools.
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

{{/* The volumes of tool hosts. Takes the list of hosts. */}}
{{- define "tickfleet.toolHostVolumes" -}}
# Contains only sockets, which take no space.
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
