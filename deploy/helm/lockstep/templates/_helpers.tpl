{{/* The prefix of all names. */}}
{{- define "lockstep.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* Below, a component is a dict: root, the context of the chart; name, such as state; and values, its section. */}}

{{- define "lockstep.component" -}}
{{ include "lockstep.name" .root }}-{{ .name }}
{{- end }}

{{- define "lockstep.selector" -}}
app.kubernetes.io/name: lockstep-{{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "lockstep.labels" -}}
{{ include "lockstep.selector" . }}
app.kubernetes.io/component: {{ .name }}
app.kubernetes.io/part-of: lockstep
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{- define "lockstep.metadata" -}}
name: {{ include "lockstep.component" . }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "lockstep.labels" . | nindent 2 }}
{{- end }}

{{/* The tag of Lockstep's images. */}}
{{- define "lockstep.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The image of a program: a dict of root and program. */}}
{{- define "lockstep.image" -}}
{{ .root.Values.image.repository }}/{{ .program }}:{{ include "lockstep.tag" .root }}
{{- end }}

{{/* What every pod of a component has: labels, placement, and as whom it runs. `user` defaults to 65532. */}}
{{- define "lockstep.podMetadata" -}}
labels:
  {{- include "lockstep.labels" . | nindent 2 }}
{{- end }}

{{- define "lockstep.pod" -}}
{{- $user := .user | default 65532 -}}
serviceAccountName: {{ include "lockstep.component" . }}
automountServiceAccountToken: {{ .automount | default false }}
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ $user }}
  runAsGroup: {{ $user }}
  fsGroup: {{ $user }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector: {matchLabels: {{ include "lockstep.selector" . | fromYaml | toJson }}}
{{- end }}

{{- define "lockstep.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Copies of each stream. */}}
{{- define "lockstep.streamReplicas" -}}
{{- if gt (int .Values.streams.replicas) 0 -}}
{{ .Values.streams.replicas }}
{{- else -}}
{{ ternary 3 1 (and (not .Values.nats.url) (ge (int .Values.nats.replicas) 3)) }}
{{- end -}}
{{- end }}

{{/* The container of a service, up to its own variables: those of all services, probes, resources. */}}
{{- define "lockstep.container" -}}
name: {{ .name }}
image: {{ include "lockstep.image" (dict "root" .root "program" .name) }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
startupProbe:
  httpGet: {path: /livez, port: ops}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /livez, port: ops}
  periodSeconds: 10
  failureThreshold: 6
# A service waits for NATS and PostgreSQL by itself. To restart it would not help.
readinessProbe:
  httpGet: {path: /readyz, port: ops}
  periodSeconds: 5
resources: {{ toJson .values.resources }}
securityContext:
  {{- include "lockstep.containerSecurity" . | nindent 2 }}
{{- end }}

{{/* The variables that the chart sets, and the value that decides each. Empty: none does. */}}
{{- define "lockstep.variables" -}}
LOCKSTEP_ADMISSION_ENABLED: admission.enabled
LOCKSTEP_AGENTS_CA_FILE: nats.tls.secretName
LOCKSTEP_AGENTS_KEYS_DIR:
LOCKSTEP_AGENTS_LISTEN:
LOCKSTEP_AGENTS_TLS_CERT_FILE: relay.tls.secretName
LOCKSTEP_AGENTS_TLS_KEY_FILE: relay.tls.secretName
LOCKSTEP_AGENTS_URLS: agents.natsURLs
LOCKSTEP_API_LISTEN:
LOCKSTEP_API_TLS_CERT_FILE: {{ .name }}.tls.secretName
LOCKSTEP_API_TLS_KEY_FILE: {{ .name }}.tls.secretName
LOCKSTEP_ARTIFACTS_STORE_DISK_FOLDER:
LOCKSTEP_ARTIFACTS_STORE_KIND: runners.artifacts.kind
LOCKSTEP_ARTIFACTS_STORE_S3_ACCESS_KEY_FILE: runners.artifacts.s3.secretName
LOCKSTEP_ARTIFACTS_STORE_S3_BUCKET: runners.artifacts.s3.bucket
LOCKSTEP_ARTIFACTS_STORE_S3_CA_FILE: runners.artifacts.s3.caSecretName
LOCKSTEP_ARTIFACTS_STORE_S3_ENDPOINT: runners.artifacts.s3.endpoint
LOCKSTEP_ARTIFACTS_STORE_S3_PATH_STYLE: runners.artifacts.s3.pathStyle
LOCKSTEP_ARTIFACTS_STORE_S3_PREFIX: runners.artifacts.s3.prefix
LOCKSTEP_ARTIFACTS_STORE_S3_PRESIGN: runners.artifacts.s3.presign
LOCKSTEP_ARTIFACTS_STORE_S3_REGION: runners.artifacts.s3.region
LOCKSTEP_ARTIFACTS_STORE_S3_SECRET_KEY_FILE: runners.artifacts.s3.secretName
LOCKSTEP_BOOTSTRAP_ADMIN_TOKEN_FILE:
LOCKSTEP_CELL_NAME: cell.name
LOCKSTEP_CELL_NUMBER: cell.number
LOCKSTEP_CELL_PUBLIC_URL: {{ .name }}.cell.publicURL
LOCKSTEP_CELL_REDIRECT_URL: runners.cell.redirectURL
LOCKSTEP_CELL_URL: runners.cell.url
LOCKSTEP_CELLS_CA_FILE: router.cells.caSecretName
LOCKSTEP_CONTROLLERS_ALLOW_NETWORKS: admission.controllers.allowNetworks
LOCKSTEP_DATABASE_URL_FILE: postgresql.secretNames
LOCKSTEP_DRAIN_TIMEOUT:
LOCKSTEP_EXTERNAL_AUDIENCE: relay.callers.audience
LOCKSTEP_EXTERNAL_CALLERS_FILE: relay.callers.secretName
LOCKSTEP_EXTERNAL_ISSUER: relay.callers.issuer
LOCKSTEP_EXTERNAL_LISTEN:
LOCKSTEP_EXTERNAL_SECRET_FILE: relay.callers.secretName
LOCKSTEP_EXTERNAL_TLS_CERT_FILE: relay.tls.secretName
LOCKSTEP_EXTERNAL_TLS_KEY_FILE: relay.tls.secretName
LOCKSTEP_GATEWAY_PUBLIC_KEYS: state.gateway.publicKeys
LOCKSTEP_GATEWAY_URL: state.gateway.url
LOCKSTEP_INTERNAL_CA_FILE: relay.tls.secretName
LOCKSTEP_INTERNAL_LISTEN:
LOCKSTEP_INTERNAL_SECRET_FILE:
LOCKSTEP_INTERNAL_TLS_CERT_FILE: relay.tls.secretName
LOCKSTEP_INTERNAL_TLS_KEY_FILE: relay.tls.secretName
LOCKSTEP_INTERNAL_URL:
LOCKSTEP_MAP_CA_FILE: runners.cell.map.caSecretName
LOCKSTEP_MAP_NKEY_SEED_FILE: runners.cell.map.secretName
LOCKSTEP_MAP_URL: runners.cell.map.url
LOCKSTEP_NATS_NKEY_SEED_FILE:
LOCKSTEP_NATS_TLS_CA_FILE: nats.tls.secretName
LOCKSTEP_NATS_URL: nats.url
LOCKSTEP_OPS_LISTEN:
LOCKSTEP_RELAY_CA_FILE: gateway.workspaces.relay.secretName
LOCKSTEP_RELAY_TOKEN_FILE: gateway.workspaces.relay.secretName
LOCKSTEP_RELAY_URL: gateway.workspaces.relay.url
LOCKSTEP_REGISTRY_REPLICAS: streams.replicas
LOCKSTEP_SECRETS_DIGEST_KEY_FILE:
LOCKSTEP_SECRETS_KEY_FILE:
LOCKSTEP_SECRETS_SEAL_SEED_FILE:
LOCKSTEP_SIGN_IN_CA_FILE: gateway.signIn.caSecretName
LOCKSTEP_SIGN_IN_CLIENT_ID: gateway.signIn.clientID
LOCKSTEP_SIGN_IN_CLIENT_SECRET_FILE: gateway.signIn.secretName
LOCKSTEP_SIGN_IN_ISSUER: gateway.signIn.issuer
LOCKSTEP_SIGN_IN_KEYS_FILE:
LOCKSTEP_SIGN_IN_PERSON_KEY_FILE:
LOCKSTEP_SIGNING_KEY_FILE:
LOCKSTEP_SINKS_FILE: deploys.sinks.secretName
LOCKSTEP_SSH_ADDRESS: gateway.ssh.address
LOCKSTEP_SSH_HOST_KEY_FILE:
LOCKSTEP_SSH_LISTEN:
LOCKSTEP_STATE_CA_FILE: {{ .name }}.state.caSecretName
LOCKSTEP_STATE_URL: {{ .name }}.state.url
LOCKSTEP_STREAMS_REPLICAS: streams.replicas
LOCKSTEP_STREAMS_STORAGE: streams.storage
LOCKSTEP_TELEMETRY_OTLP_ENDPOINT: telemetry.otlpEndpoint
LOCKSTEP_WEB_LISTEN:
LOCKSTEP_WEB_TLS_CERT_FILE: gateway.tls.secretName
LOCKSTEP_WEB_TLS_KEY_FILE: gateway.tls.secretName
LOCKSTEP_WORKSPACE_AGENT_IMAGE: state.gateway.agentImage
LOCKSTEP_WORKSPACE_INGRESS_PEERS: state.gateway.ingressPeers
LOCKSTEP_WORKSPACE_SSH_AUTHORITIES: state.gateway.sshAuthorities
LOCKSTEP_WORKSPACES_AUTHORITY_KEY_FILE:
LOCKSTEP_WORKSPACES_MODE: gateway.workspaces.mode
LOCKSTEP_ZONE: gateway.zone
{{- end }}

{{/* The variables that all services have, and those of values.settings, of which the chart sets none. */}}
{{- define "lockstep.environment" -}}
{{- $set := include "lockstep.variables" . | fromYaml }}
- {name: LOCKSTEP_OPS_LISTEN, value: ":8081"}
- {name: LOCKSTEP_CELL_NAME, value: {{ .root.Values.cell.name | quote }}}
- {name: LOCKSTEP_NATS_URL, value: {{ include "lockstep.natsURL" .root | quote }}}
{{- if .root.Values.nats.tls.secretName }}
- {name: LOCKSTEP_NATS_TLS_CA_FILE, value: /nats-tls/ca.crt}
{{- end }}
{{- with .root.Values.telemetry.otlpEndpoint }}
- {name: LOCKSTEP_TELEMETRY_OTLP_ENDPOINT, value: {{ . | quote }}}
{{- end }}
{{- range $name, $value := .values.settings }}
{{- if hasKey $set $name }}
{{- fail (printf "%s.settings.%s: %s" $.name $name (empty (get $set $name) | ternary "the chart sets it, and it cannot be changed" (printf "use the value %s" (get $set $name)))) }}
{{- end }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- define "lockstep.natsTLSMount" -}}
{{- if .root.Values.nats.tls.secretName -}}
- {name: nats-tls, mountPath: /nats-tls, readOnly: true}
{{- end -}}
{{- end }}

{{/* Only the CA: the key is for the servers. */}}
{{- define "lockstep.natsTLSVolume" -}}
{{- if .root.Values.nats.tls.secretName -}}
- name: nats-tls
  secret: {secretName: {{ .root.Values.nats.tls.secretName }}, defaultMode: 0440, items: [{key: ca.crt, path: ca.crt}]}
{{- end -}}
{{- end }}

{{/* The server's certificate of an API, if values.tls.secretName is set. */}}
{{- define "lockstep.tlsMount" -}}
{{- if .values.tls.secretName -}}
- {name: tls, mountPath: /tls, readOnly: true}
{{- end -}}
{{- end }}

{{- define "lockstep.tlsVolume" -}}
{{- if .values.tls.secretName -}}
- name: tls
  secret: {secretName: {{ .values.tls.secretName }}, defaultMode: 0440}
{{- end -}}
{{- end }}

{{- define "lockstep.databaseVolume" -}}
- name: database
  secret:
    secretName: {{ include "lockstep.databaseSecret" . }}
    defaultMode: 0440
    items: [{key: {{ ternary "database.url" .root.Values.postgresql.secretKey (eq "true" (include "lockstep.ownDatabase" .root)) }}, path: url}]
{{- end }}

{{/* All servers, so that a client does not wait when it has to leave one. */}}
{{- define "lockstep.natsURL" -}}
{{- if .Values.nats.url -}}
{{ .Values.nats.url }}
{{- else -}}
{{- $scheme := ternary "tls" "nats" (ne .Values.nats.tls.secretName "") -}}
{{- $name := printf "%s-nats" (include "lockstep.name" .) -}}
{{- range $i := until (int .Values.nats.replicas) -}}
{{ if $i }},{{ end }}{{ $scheme }}://{{ $name }}-{{ $i }}.{{ $name }}-internal.{{ $.Release.Namespace }}.svc:4222
{{- end -}}
{{- end -}}
{{- end }}

{{/* The services that have a role of PostgreSQL. */}}
{{- define "lockstep.databaseServices" -}}
[state, deploys, runners, admission]
{{- end }}

{{/* Whether the chart brings PostgreSQL along. */}}
{{- define "lockstep.ownDatabase" -}}
{{- with .Values.postgresql }}
{{- if or .url .secretName }}
{{- fail "postgresql.url and postgresql.secretName: set postgresql.urls or postgresql.secretNames, for each service a role of its own; see docs/operations.md" }}
{{- end }}
{{- eq "" (join "" (concat (values .urls) (values .secretNames))) }}
{{- end }}
{{- end }}

{{/* The Secret with the connection string of a service: its own Secret, or what the values name. */}}
{{- define "lockstep.databaseSecret" -}}
{{- $given := .root.Values.postgresql }}
{{- if eq "true" (include "lockstep.ownDatabase" .root) -}}
{{ include "lockstep.component" . }}
{{- else if get $given.secretNames .name -}}
{{ get $given.secretNames .name }}
{{- else if get $given.urls .name -}}
{{ include "lockstep.component" . }}-database
{{- else -}}
{{- fail (printf "postgresql: %s needs a role of its own: set urls.%s or secretNames.%s" .name .name .name) }}
{{- end -}}
{{- end }}

{{/* The objects that every component has beside its pods. */}}

{{- define "lockstep.serviceAccount" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "lockstep.metadata" . | nindent 2 }}
automountServiceAccountToken: false
{{- end }}

{{- define "lockstep.podDisruptionBudget" -}}
{{- if and .root.Values.podDisruptionBudgets.enabled (gt (int .values.replicas) 1) }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "lockstep.metadata" . | nindent 2 }}
spec:
  maxUnavailable: 1
  selector: {matchLabels: {{ include "lockstep.selector" . | fromYaml | toJson }}}
{{- end }}
{{- end }}

{{/* The port of an API, without the one of operators: this Service may be a load balancer. */}}
{{- define "lockstep.service" -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "lockstep.metadata" . | nindent 2 }}
  {{- with .values.service.annotations }}
  annotations: {{ toJson . }}
  {{- end }}
spec:
  type: {{ .values.service.type }}
  selector: {{ include "lockstep.selector" . | fromYaml | toJson }}
  ports:
    - {name: api, port: {{ .values.service.port }}, targetPort: api}
{{- end }}

{{/* The address of the API of a service in this cluster: a dict of root and name. */}}
{{- define "lockstep.apiURL" -}}
{{- $values := get .root.Values .name -}}
{{- $scheme := ternary "https" "http" (ne $values.tls.secretName "") -}}
{{- $port := int $values.service.port -}}
{{ $scheme }}://{{ include "lockstep.component" . }}.{{ .root.Release.Namespace }}.svc
{{- if ne $port (ternary 443 80 (eq $scheme "https")) }}:{{ $port }}{{ end }}
{{- end }}

{{/* The zone of the gateway without its port. */}}
{{- define "lockstep.zoneHost" -}}
{{ required "gateway.zone is missing" .Values.gateway.zone | regexFind "^[^:]+" }}
{{- end }}

{{/* The address of an ingress that is on. */}}
{{- define "lockstep.ingressURL" -}}
{{ ternary "http" "https" (empty .tlsSecretName) }}://{{ .host }}
{{- end }}

{{- define "lockstep.ingress" -}}
{{- with .values.ingress }}
{{- if .enabled }}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  {{- include "lockstep.metadata" $ | nindent 2 }}
  {{- with .annotations }}
  annotations: {{ toJson . }}
  {{- end }}
spec:
  {{- with .className }}
  ingressClassName: {{ . }}
  {{- end }}
  rules:
    - host: {{ required (printf "%s.ingress.host is missing" $.name) .host | quote }}
      http:
        paths:
          - path: /
            pathType: Prefix
            backend: {service: {name: {{ include "lockstep.component" $ }}, port: {name: api}}}
  {{- with .tlsSecretName }}
  tls:
    - {hosts: [{{ $.values.ingress.host | quote }}], secretName: {{ . }}}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "lockstep.serviceMonitor" -}}
{{- with .root.Values.monitoring.serviceMonitors }}
{{- if .enabled }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ include "lockstep.component" $ }}-ops
  namespace: {{ $.root.Release.Namespace }}
  labels:
    {{- include "lockstep.labels" $ | nindent 4 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{ include "lockstep.selector" $ | fromYaml | toJson }}
  ports:
    - {name: ops, port: 8081, targetPort: ops}
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: {{ include "lockstep.component" $ }}
  namespace: {{ $.root.Release.Namespace }}
  labels:
    {{- include "lockstep.labels" $ | nindent 4 }}
    {{- with .labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  # The name of the job is the component's, as dashboards and alerts have it.
  jobLabel: app.kubernetes.io/component
  selector: {matchLabels: {{ include "lockstep.selector" $ | fromYaml | toJson }}}
  endpoints:
    - {port: ops, path: /metrics, interval: {{ .interval }}}
{{- end }}
{{- end }}
{{- end }}

{{/* Rules of NetworkPolicies. */}}

{{- define "lockstep.ingressOps" -}}
# Prometheus. Probes come from the node, which no policy concerns.
- ports: [{port: ops}]
  from: {{ toJson .root.Values.networkPolicies.monitoring }}
{{- end }}

{{- define "lockstep.egressDNS" -}}
- ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
  to: {{ toJson .root.Values.networkPolicies.dns }}
{{- end }}

{{- define "lockstep.egressNATS" -}}
{{- if .root.Values.nats.url -}}
- ports:
    {{- range splitList "," .root.Values.nats.url }}
    - {protocol: TCP, port: {{ (urlParse (trim .)).host | regexFind ":[0-9]+$" | trimPrefix ":" | default "4222" }}}
    {{- end }}
{{- else -}}
- ports: [{protocol: TCP, port: 4222}]
  to:
    - podSelector: {matchLabels: {{ include "lockstep.selector" (dict "root" .root "name" "nats") | fromYaml | toJson }}}
{{- end -}}
{{- end }}

{{- define "lockstep.egressPostgreSQL" -}}
{{- if eq "true" (include "lockstep.ownDatabase" .root) -}}
- ports: [{protocol: TCP, port: 5432}]
  to:
    - podSelector: {matchLabels: {{ include "lockstep.selector" (dict "root" .root "name" "postgresql") | fromYaml | toJson }}}
{{- else -}}
- ports: [{protocol: TCP, port: {{ .root.Values.postgresql.port }}}]
{{- end -}}
{{- end }}

{{- define "lockstep.egressTelemetry" -}}
{{- with .root.Values.telemetry -}}
{{- if .otlpEndpoint -}}
- ports: [{protocol: TCP, port: {{ (urlParse .otlpEndpoint).host | regexFind "[0-9]+$" }}}]
  {{- with .peers }}
  to: {{ toJson . }}
  {{- end }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Anybody, at these ports. */}}
{{- define "lockstep.egressPorts" -}}
- ports:
    {{- range . }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
{{- end }}

{{- define "lockstep.volumeClaim" -}}
- apiVersion: v1
  kind: PersistentVolumeClaim
  metadata:
    name: data
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .values.storage.className }}
    storageClassName: {{ . }}
    {{- end }}
    resources: {requests: {storage: {{ .values.storage.size }}}}
{{- end }}

{{/* Metadata of what the job needs: made before it, and anew for each release. A dict of component and weight. */}}
{{- define "lockstep.hookMetadata" -}}
{{ include "lockstep.metadata" .component }}
annotations:
  helm.sh/hook: pre-install,pre-upgrade
  helm.sh/hook-weight: {{ .weight | quote }}
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
