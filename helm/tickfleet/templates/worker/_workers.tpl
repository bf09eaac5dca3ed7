{{/* Pools of workers: what each is made of, and whether it can work. */}}

{{/* Name → values of every pool, `worker` with the pool's own laid over it, as JSON. */}}
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

{{/* The name of a pool's objects; takes root and pool. */}}
{{- define "tickfleet.poolName" -}}
{{- $name := printf "%s-worker" (include "tickfleet.fullname" .root) -}}
{{- ternary $name (printf "%s-%s" $name .pool) (eq .pool "default") -}}
{{- end -}}

{{/* The labels by which a pool's pods are told from others; takes root and pool. */}}
{{- define "tickfleet.poolLabels" -}}
{{ include "tickfleet.selectorLabels" .root }}
app.kubernetes.io/component: worker
tickfleet/pool: {{ .pool }}
{{- end -}}

{{/* Fails where pools leave work undone, or where a pool would be killed while calls run. */}}
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

{{/* terminationGracePeriodSeconds > drainSeconds > the longest time-out of a tool. A hook that sleeps comes before the drain, and
     takes of the same time. Takes root, name and pool. */}}
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
{{- /* After the drain, a worker hands back what is left; that takes up to 3 s. Then tools are stopped, and MCP servers ended: up to 5 s. */ -}}
{{- $sleep := 0 -}}
{{- with .pool.lifecycle }}{{ with .preStop }}{{ with .sleep }}{{ $sleep = int .seconds }}{{ end }}{{ end }}{{ end -}}
{{- if and $sleep (lt $grace (add $drain 10 $sleep | int)) -}}
{{- fail (printf "worker pool %q: terminationGracePeriodSeconds (%d) must be at least lifecycle.preStop.sleep.seconds + drainSeconds + 10 (%d), or Kubernetes kills workers that are draining" .name $grace (add $drain 10 $sleep | int)) -}}
{{- else if lt $grace (add $drain 10 | int) -}}
{{- fail (printf "worker pool %q: terminationGracePeriodSeconds (%d) must be at least drainSeconds + 10 (%d), or Kubernetes kills workers that are draining" .name $grace (add $drain 10 | int)) -}}
{{- end -}}
{{- end -}}

{{/* Takes name and scaling. */}}
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

{{/* "true" where the fleet may have no worker at all: KEDA may take the last pod of a pool, and no other pool keeps one. */}}
{{- define "tickfleet.mayRest" -}}
{{- $keda := false -}}
{{- $least := 0 -}}
{{- range $pool := include "tickfleet.pools" . | fromJson -}}
{{- $keda = or $keda (eq $pool.autoscaling.kind "keda") -}}
{{- $least = max $least (ternary $pool.replicas $pool.autoscaling.minReplicas (eq $pool.autoscaling.kind "off") | int) -}}
{{- end -}}
{{- if and $keda (eq (int $least) 0) }}true{{ end -}}
{{- end -}}

{{/* Work (ready, running or left by a worker that died) that one pod should have: its slots, filled as wished. */}}
{{- define "tickfleet.workPerPod" -}}
{{- max 1 (div (mul (int .slots) (int .autoscaling.targetSlotsPercent)) 100) -}}
{{- end -}}
