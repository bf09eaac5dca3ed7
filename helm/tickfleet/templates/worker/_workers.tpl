{{/* Pools of workers: their values, and checks. */}}

{{/* Name → values of every pool, as JSON: the pool's values merged into those of `worker`. */}}
{{- define "tickfleet.pools" -}}
{{- $pools := dict -}}
{{- range $name, $own := .Values.workerPools -}}
{{- if not (regexMatch "^[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?$" $name) -}}
{{- fail (printf "workerPools: %q is not a valid pool name; expected at most 15 of a-z, 0-9 and -" $name) -}}
{{- end -}}
{{- $pool := include "tickfleet.overlay" (dict "base" $.Values.worker "over" ($own | default dict)) | fromJson -}}
{{- $_ := set $pools $name $pool -}}
{{- end -}}
{{- toJson $pools -}}
{{- end -}}

{{/* The name of a pool's objects. Takes root and pool. */}}
{{- define "tickfleet.poolName" -}}
{{- $name := printf "%s-worker" (include "tickfleet.fullname" .root) -}}
{{- ternary $name (printf "%s-%s" $name .pool) (eq .pool "default") -}}
{{- end -}}

{{/* The labels that select a pool's pods. Takes root and pool. */}}
{{- define "tickfleet.poolLabels" -}}
{{ include "tickfleet.selectorLabels" .root }}
app.kubernetes.io/component: worker
tickfleet/pool: {{ .pool }}
{{- end -}}

{{/* Fails if the pools leave a priority unserved, or if a pool would be killed while calls run. */}}
{{- define "tickfleet.checkPools" -}}
{{- $pools := include "tickfleet.pools" . | fromJson -}}
{{- if not $pools -}}
{{- fail "workerPools: no pool is left to run calls; keep `default`" -}}
{{- end -}}
{{- $served := list -}}
{{- range $name, $pool := $pools -}}
{{- $served = concat $served $pool.priorities -}}
{{- include "tickfleet.checkDrain" (dict "root" $ "name" $name "pool" $pool) -}}
{{- include "tickfleet.checkScaling" (dict "name" $name "scaling" $pool.autoscaling) -}}
{{- include "tickfleet.checkToolHosts" (dict "root" $ "name" $name "pool" $pool) -}}
{{- end -}}
{{- range $priority := list "urgent" "high" "normal" "low" -}}
{{- if not (has $priority $served) -}}
{{- fail (printf "workerPools: no pool serves priority %q, and its work would wait until its deadline; add it to a pool's priorities" $priority) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Fails unless terminationGracePeriodSeconds > drainSeconds > the longest timeout of a tool. A sleeping preStop hook
     runs before the drain and counts towards the grace period. Takes root, name and pool. */}}
{{- define "tickfleet.checkDrain" -}}
{{- $longest := .pool.longestToolSeconds | toString -}}
{{- if or (eq $longest "") (eq $longest "<nil>") -}}
{{- $longest = ternary "0" (include "tickfleet.longestToolSeconds" .root) (ne .root.Values.config.existingConfigMap "") -}}
{{- end -}}
{{- $drain := int .pool.drainSeconds -}}
{{- $grace := int .pool.terminationGracePeriodSeconds -}}
{{- if le (float64 $drain) (float64 $longest) -}}
{{- fail (printf "worker pool %q: drainSeconds (%d) must exceed the longest timeout of a tool (%s s), so that running calls can finish after SIGTERM. Raise drainSeconds, or lower config.settings.worker.tool_timeout or the tool's timeout_ms" .name $drain $longest) -}}
{{- end -}}
{{- /* After the drain: up to 3 s to release the remaining work, then up to 5 s to stop tools and MCP servers. */ -}}
{{- $sleep := 0 -}}
{{- with .pool.lifecycle }}{{ with .preStop }}{{ with .sleep }}{{ $sleep = int .seconds }}{{ end }}{{ end }}{{ end -}}
{{- if and $sleep (lt $grace (add $drain 10 $sleep | int)) -}}
{{- fail (printf "worker pool %q: terminationGracePeriodSeconds (%d) must be at least lifecycle.preStop.sleep.seconds + drainSeconds + 10 (%d), or Kubernetes kills workers that are draining" .name $grace (add $drain 10 $sleep | int)) -}}
{{- else if lt $grace (add $drain 10 | int) -}}
{{- fail (printf "worker pool %q: terminationGracePeriodSeconds (%d) must be at least drainSeconds + 10 (%d), or Kubernetes kills workers that are draining" .name $grace (add $drain 10 | int)) -}}
{{- end -}}
{{- end -}}

{{/* Fails on invalid bounds of autoscaling. Takes name and scaling. */}}
{{- define "tickfleet.checkScaling" -}}
{{- if ne .scaling.kind "off" -}}
{{- if lt (int .scaling.maxReplicas) (int .scaling.minReplicas) -}}
{{- fail (printf "worker pool %q: autoscaling.maxReplicas (%d) is below minReplicas (%d)" .name (int .scaling.maxReplicas) (int .scaling.minReplicas)) -}}
{{- end -}}
{{- if and (eq .scaling.kind "hpa") (lt (int .scaling.minReplicas) 1) -}}
{{- fail (printf "worker pool %q: autoscaling.minReplicas: a HorizontalPodAutoscaler needs at least 1; keda can scale down to 0" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* "true" if the fleet can have no worker: KEDA can remove the last pod, and no other pool keeps one. */}}
{{- define "tickfleet.mayRest" -}}
{{- $keda := false -}}
{{- $least := 0 -}}
{{- range $pool := include "tickfleet.pools" . | fromJson -}}
{{- $keda = or $keda (eq $pool.autoscaling.kind "keda") -}}
{{- $least = max $least (ternary $pool.replicas $pool.autoscaling.minReplicas (eq $pool.autoscaling.kind "off") | int) -}}
{{- end -}}
{{- if and $keda (eq (int $least) 0) }}true{{ end -}}
{{- end -}}

{{/* The work (ready, running and redelivered) that one pod should have: its slots times targetSlotsPercent. */}}
{{- define "tickfleet.workPerPod" -}}
{{- max 1 (div (mul (int .slots) (int .autoscaling.targetSlotsPercent)) 100) -}}
{{- end -}}
