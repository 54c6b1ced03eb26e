{{- define "reprise.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "reprise.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end -}}

{{- define "reprise.labels" -}}
{{ include "reprise.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "reprise.image" -}}
{{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end -}}

{{- define "reprise.keysSecret" -}}
{{ default (printf "%s-keys" (include "reprise.name" .)) .Values.keys.existingSecret }}
{{- end -}}

{{/* Whether keys are in a Secret: else the embedded pod makes them on its volume. */}}
{{- define "reprise.hasKeysSecret" -}}
{{- if or .Values.keys.existingSecret (eq .Values.mode "distributed") }}yes{{ end -}}
{{- end -}}

{{/* reprise.toml: what the chart's own values say, and over it the value `settings`. */}}
{{- define "reprise.settings" -}}
{{- $own := dict "access" (dict "open_probes" true) -}}
{{- if eq .Values.mode "embedded" -}}
{{- $_ := set $own "log" (dict "retention_gib" .Values.embedded.logRetentionGib "retention_hours" .Values.embedded.logRetentionHours) -}}
{{- else -}}
{{- $_ := set $own "bridge" (dict "spool_gib" .Values.bridge.spoolGib) -}}
{{- $_ := set $own "history" (dict "on" .Values.serve.history "gib" .Values.serve.historyGib) -}}
{{- end -}}
{{- toToml (mergeOverwrite $own (deepCopy .Values.settings)) -}}
{{- end -}}

{{- define "reprise.settingsEnvironment" -}}
- {name: REPRISE_SETTINGS, value: /settings/reprise.toml}
{{- end -}}

{{/* Gateways have no place for a key: who may ask is the network policy's. */}}
{{- define "reprise.pickerEnvironment" -}}
{{- if .Values.inferencePool.enabled }}
- {name: REPRISE_EXT_PROC, value: "0.0.0.0:9002"}
- {name: REPRISE_EXT_PROC_INSECURE, value: "true"}
{{- end }}
{{- end -}}

{{/* Keys are asked for as by the API. */}}
{{- define "reprise.gatewayEnvironment" -}}
{{- if .Values.gateway.enabled }}
- {name: REPRISE_GATEWAY, value: "0.0.0.0:8080"}
{{- with .Values.gateway.engines }}
- {name: REPRISE_ENGINES, value: {{ join "," . | quote }}}
{{- end }}
{{- end }}
{{- end -}}

{{- define "reprise.engineKeysEnvironment" -}}
{{- if .Values.engineKeysSecret }}
- {name: REPRISE_ENGINE_KEYS, value: /engine-keys/engine.keys}
{{- end }}
{{- end -}}

{{- define "reprise.engineKeysMount" -}}
{{- if .Values.engineKeysSecret }}
- {name: engine-keys, mountPath: /engine-keys, readOnly: true}
{{- end }}
{{- end -}}

{{- define "reprise.engineKeysVolume" -}}
{{- with .Values.engineKeysSecret }}
- {name: engine-keys, secret: {secretName: {{ . | quote }}, defaultMode: 0440}}
{{- end }}
{{- end -}}

{{- define "reprise.answeringPorts" -}}
- {name: http, containerPort: 13333}
{{- if .Values.gateway.enabled }}
- {name: gateway, containerPort: 8080}
{{- end }}
{{- if .Values.inferencePool.enabled }}
- {name: ext-proc, containerPort: 9002}
{{- end }}
{{- end -}}

{{- define "reprise.settingsVolume" -}}
- {name: settings, configMap: {name: {{ include "reprise.name" . }}-settings}}
{{- end -}}

{{- define "reprise.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "reprise.kafkaEnvironment" -}}
- {name: REPRISE_KAFKA, value: {{ required "kafka.bootstrap: expected host:port of your Kafka" .Values.kafka.bootstrap | quote }}}
- {name: REPRISE_TOPIC_PREFIX, value: {{ .Values.kafka.topicPrefix | quote }}}
- {name: REPRISE_REPLICATION, value: {{ .Values.kafka.replication | quote }}}
- {name: REPRISE_EVENTS_PARTITIONS, value: {{ .Values.kafka.eventsPartitions | quote }}}
- {name: REPRISE_REGISTRY_PARTITIONS, value: {{ .Values.kafka.registryPartitions | quote }}}
- {name: REPRISE_KAFKA_SECURITY_PROTOCOL, value: {{ .Values.kafka.securityProtocol | quote }}}
{{- with .Values.kafka.saslMechanism }}
- {name: REPRISE_KAFKA_SASL_MECHANISM, value: {{ . | quote }}}
{{- end }}
{{- with .Values.kafka.saslSecret }}
- name: REPRISE_KAFKA_SASL_USERNAME
  valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: username}}
- name: REPRISE_KAFKA_SASL_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: password}}
{{- end }}
{{- if .Values.kafka.caSecret }}
- {name: REPRISE_KAFKA_SSL_CAFILE, value: /kafka/ca.pem}
{{- end }}
{{- end -}}

{{/* What pods of all roles have in common; takes {root, role}. */}}
{{- define "reprise.pod" -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .root.Values.affinity }}
affinity: {{- toYaml .root.Values.affinity | nindent 2 }}
{{- else }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "reprise.selector" . | nindent 8 }}
{{- end }}
automountServiceAccountToken: false
terminationGracePeriodSeconds: 30
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "reprise.podMetadata" -}}
labels: {{- include "reprise.labels" . | nindent 2 }}
{{- with .root.Values.podLabels }}
{{- toYaml . | nindent 2 }}
{{- end }}
annotations:
  reprise.dev/settings: {{ include "reprise.settings" .root | sha256sum | trunc 16 }} # a change starts pods again
{{- with .root.Values.podAnnotations }}
{{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "reprise.claim" -}}
- apiVersion: v1
  kind: PersistentVolumeClaim
  metadata: {name: data}
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .root.Values.storageClass }}
    storageClassName: {{ . | quote }}
    {{- end }}
    resources: {requests: {storage: {{ .storage }}}}
{{- end -}}

{{- define "reprise.answeringProbes" -}}
startupProbe:
  httpGet: {path: /health, port: http}
  periodSeconds: 2
  failureThreshold: 90
livenessProbe:
  httpGet: {path: /health, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /ready, port: http}
  periodSeconds: 5
  timeoutSeconds: 3
{{- end -}}

{{/* /health answers while Kafka is away, too: a restart would not help then. */}}
{{- define "reprise.roleProbes" -}}
startupProbe:
  httpGet: {path: /health, port: metrics}
  periodSeconds: 2
  failureThreshold: 90
livenessProbe:
  httpGet: {path: /health, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end -}}
