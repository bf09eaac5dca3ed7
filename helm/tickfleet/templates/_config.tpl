{{/* The configuration of the fleet, and helpers that read it. */}}

{{/* The files of the configuration folder: name → text, as JSON. */}}
{{- define "tickfleet.configFiles" -}}
{{- $files := dict -}}
{{- if .Values.config.samples -}}
{{- range $path, $_ := .Files.Glob "files/config/*.yaml" -}}
{{- if ne (base $path) "tickfleet.yaml" -}}
{{- $_ := set $files (base $path) ($.Files.Get $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $name, $text := .Values.config.files -}}
{{- include "tickfleet.checkFileName" (dict "root" $ "name" $name) -}}
{{- $_ := set $files $name $text -}}
{{- end -}}
{{- range $name, $text := .Values.config.prompts -}}
{{- include "tickfleet.checkPromptName" (dict "root" $ "name" $name) -}}
{{- $_ := set $files $name $text -}}
{{- end -}}
{{- $_ := set $files "tickfleet.yaml" (printf "# Settings that differ from the built-in defaults.\n%s\n" (toYaml .Values.config.settings)) -}}
{{- toJson $files -}}
{{- end -}}

{{/* Fails on a file that no process reads. Takes root and name. */}}
{{- define "tickfleet.checkFileName" -}}
{{- $known := list -}}
{{- range $path, $_ := .root.Files.Glob "files/config/*.yaml" -}}
{{- $known = append $known (base $path) -}}
{{- end -}}
{{- if eq .name "tickfleet.yaml" -}}
{{- fail "config.files: tickfleet.yaml is generated from config.settings; put your settings there" -}}
{{- else if and (regexMatch "\\.ya?ml$" .name) (not (has .name $known)) -}}
{{- fail (printf "config.files: unknown file %q; expected one of %s, or a file that is not YAML" .name (without $known "tickfleet.yaml" | join ", ")) -}}
{{- else if not (regexMatch "^[A-Za-z0-9_][A-Za-z0-9._-]*$" .name) -}}
{{- fail (printf "config.files: %q is not a valid file name; expected letters, digits, - _ and ." .name) -}}
{{- end -}}
{{- end -}}

{{/* Fails on a prompt that no process reads, or that is also in config.files. Takes root and name. */}}
{{- define "tickfleet.checkPromptName" -}}
{{- $known := list -}}
{{- range $path, $_ := .root.Files.Glob "files/config/prompts/*.txt" -}}
{{- if not (hasPrefix "agent." (base $path)) -}}
{{- $known = append $known (base $path) -}}
{{- end -}}
{{- end -}}
{{- $files := .root.Values.config.files | default dict -}}
{{- if not (or (has .name $known) (regexMatch "^agent\\.[A-Za-z0-9._-]+\\.txt$" .name)) -}}
{{- fail (printf "config.prompts: unknown prompt %q; expected agent.<name>.txt, with letters, digits, - _ and . in its name, or one of %s" .name (join ", " $known)) -}}
{{- else if hasKey $files .name -}}
{{- fail (printf "config.prompts: %q is also in config.files, where it has no effect; remove it there" .name) -}}
{{- else if hasKey $files "prompts" -}}
{{- fail "config.files: the file \"prompts\" conflicts with the folder of config.prompts; rename it" -}}
{{- end -}}
{{- end -}}

{{/* The volume of the configuration folder, with the prompts in its folder `prompts`. */}}
{{- define "tickfleet.configVolume" -}}
{{- $configMap := default (printf "%s-config" (include "tickfleet.fullname" .)) .Values.config.existingConfigMap -}}
- name: config
  {{- if .Values.config.prompts }}
  # The same ConfigMap twice, so that a change still replaces all files at once.
  projected:
    sources:
      - configMap:
          name: {{ $configMap }}
      - configMap:
          name: {{ $configMap }}
          items:
            {{- range $name, $_ := .Values.config.prompts }}
            {{- include "tickfleet.checkPromptName" (dict "root" $ "name" $name) }}
            - {key: {{ $name }}, path: prompts/{{ $name }}}
            {{- end }}
  {{- else }}
  configMap:
    name: {{ $configMap }}
  {{- end }}
{{- end -}}

{{/* Fails on settings that other values set. In the ConfigMap they would have no effect. */}}
{{- define "tickfleet.checkSettings" -}}
{{- $places := dict
  "redis.url" "redis.existingSecret (it is a secret)"
  "redis.tls_ca" "redis.tlsCA"
  "permission.samples" "config.samples"
  "http.address" "http.host and http.port"
  "worker.slots" "worker.slots, or a pool's"
  "worker.priorities" "worker.priorities, or a pool's"
  "worker.drain" "worker.drainSeconds, or a pool's" -}}
{{- range $path, $place := $places -}}
{{- $keys := splitList "." $path -}}
{{- $section := get $.Values.config.settings (first $keys) | default dict -}}
{{- if hasKey $section (last $keys) -}}
{{- fail (printf "config.settings.%s has no effect here: use %s" $path $place) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The content of tools.yaml as JSON. */}}
{{- define "tickfleet.toolsFile" -}}
{{- $files := include "tickfleet.configFiles" . | fromJson -}}
{{- $tools := get $files "tools.yaml" | default "" | fromYaml -}}
{{- if hasKey $tools "Error" -}}
{{- fail (printf "config.files.tools.yaml is not valid YAML: %s" (get $tools "Error")) -}}
{{- end -}}
{{- toJson $tools -}}
{{- end -}}

{{/* The longest timeout of a tool in seconds: the default timeout, or that of a declared tool. */}}
{{- define "tickfleet.longestToolSeconds" -}}
{{- $settings := .Values.config.settings -}}
{{- $default := dig "worker" "tool_timeout" "" $settings -}}
{{- if not $default -}}
{{- $default = (.Files.Get "files/config/tickfleet.yaml" | fromYaml).worker.tool_timeout -}}
{{- end -}}
{{- $longest := include "tickfleet.seconds" (dict "text" $default "name" "config.settings.worker.tool_timeout") | float64 -}}
{{- range $tool := get (include "tickfleet.toolsFile" . | fromJson) "tools" | default dict -}}
{{- if kindIs "map" $tool -}}
{{- $longest = maxf $longest (divf (get $tool "timeout_ms" | default 0 | float64) 1000.0) -}}
{{- end -}}
{{- end -}}
{{- $longest -}}
{{- end -}}

{{/* How the fleet's Redis is configured: existingSecret, host, url or trial. Empty if it is not configured. */}}
{{- define "tickfleet.redisWay" -}}
{{- $ways := list -}}
{{- if .Values.redis.existingSecret.name }}{{ $ways = append $ways "existingSecret" }}{{ end -}}
{{- if .Values.redis.host }}{{ $ways = append $ways "host" }}{{ end -}}
{{- if .Values.redis.url }}{{ $ways = append $ways "url" }}{{ end -}}
{{- if .Values.trialRedis.enabled }}{{ $ways = append $ways "trial" }}{{ end -}}
{{- if gt (len $ways) 1 -}}
{{- fail (printf "Redis is configured more than once (%s); set only one of %s" (join ", " $ways) (include "tickfleet.redisChoices" .)) -}}
{{- end -}}
{{- join "" $ways -}}
{{- end -}}

{{- define "tickfleet.redisChoices" -}}
redis.existingSecret.name (a Secret with the URL), redis.host, redis.url, or trialRedis.enabled=true
{{- end -}}

{{/* Environment variables of every container with the image, which also apply to commands run with `kubectl exec`.
     Takes root, component, and spec (the values of the component, which can name a Secret for its own Redis user). A
     component without a Secret needs the fleet's Redis. */}}
{{- define "tickfleet.commonEnv" -}}
{{- $way := include "tickfleet.redisWay" .root -}}
{{- if not (or .spec.redisSecret.name $way) -}}
{{- $else := ternary ", or test.enabled=false" "" (eq .component "test") -}}
{{- fail (printf "No Redis is configured for the %s. Set %s.redisSecret.name%s; or, for all parts without a Secret of their own, one of %s" .component .component $else (include "tickfleet.redisChoices" .root)) -}}
{{- end -}}
{{- if .spec.redisSecret.name -}}
- name: REDIS_URL
  valueFrom:
    secretKeyRef:
      name: {{ .spec.redisSecret.name }}
      key: {{ .spec.redisSecret.key }}
{{- else -}}
{{ include "tickfleet.redisEnv" .root | trim }}
{{- end }}
{{- with .root.Values.redis.tlsCA }}
{{- if or .configMap .secret }}
- name: TICKFLEET_REDIS_TLS_CA
  value: /etc/tickfleet-redis-ca/{{ .key }}
{{- end }}
{{- end }}
- name: TICKFLEET_CONFIG
  value: {{ .root.Values.config.mountPath }}
- name: TICKFLEET_PERMISSION_SAMPLES
  value: {{ .root.Values.config.samples | quote }}
{{- end -}}

{{/* The volume with the certificate authorities for Redis. Empty if the system's authorities are used. */}}
{{- define "tickfleet.redisCAVolume" -}}
{{- with .Values.redis.tlsCA -}}
{{- if and .configMap .secret -}}
{{- fail "redis.tlsCA: set configMap or secret, not both" -}}
{{- else if and (or .configMap .secret) (or $.Values.trialRedis.enabled (and $.Values.redis.host (not $.Values.redis.tls)) (hasPrefix "redis:" $.Values.redis.url)) -}}
{{- fail "redis.tlsCA needs TLS: set redis.tls, or a URL that starts with rediss" -}}
{{- else if .configMap -}}
- name: redis-ca
  configMap:
    name: {{ .configMap }}
{{- else if .secret -}}
- name: redis-ca
  secret:
    secretName: {{ .secret }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tickfleet.redisCAMount" -}}
{{- if or .Values.redis.tlsCA.configMap .Values.redis.tlsCA.secret -}}
- name: redis-ca
  mountPath: /etc/tickfleet-redis-ca
  readOnly: true
{{- end -}}
{{- end -}}

{{/* The environment variables for the connection to Redis. The URL is never an argument, and a password is never text
     in a Deployment. */}}
{{- define "tickfleet.redisEnv" -}}
{{- $way := include "tickfleet.redisWay" . -}}
{{- $redis := .Values.redis -}}
{{- if eq $way "host" }}
{{- $user := $redis.username }}
{{- if $redis.passwordSecret.name }}
- name: REDIS_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ $redis.passwordSecret.name }}
      key: {{ $redis.passwordSecret.key }}
{{- $user = printf "%s:$(REDIS_PASSWORD)@" $redis.username }}
{{- else if $user }}
{{- fail "redis.username needs redis.passwordSecret.name" }}
{{- end }}
- name: REDIS_URL
  value: {{ printf "%s://%s%s:%d/%d" (ternary "rediss" "redis" $redis.tls) $user $redis.host (int $redis.port) (int $redis.database) | quote }}
{{- else }}
- name: REDIS_URL
  valueFrom:
    secretKeyRef:
      {{- if eq $way "existingSecret" }}
      name: {{ $redis.existingSecret.name }}
      key: {{ $redis.existingSecret.key }}
      {{- else }}
      name: {{ include "tickfleet.fullname" . }}-redis
      key: REDIS_URL
      {{- end }}
{{- end }}
{{- end -}}
