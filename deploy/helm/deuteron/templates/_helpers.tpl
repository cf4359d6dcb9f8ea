{{- define "deuteron.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Room is left for "-headless": names of Services have 63 letters at most. */}}
{{- define "deuteron.fullname" -}}
{{- $name := include "deuteron.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 54 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 54 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 54 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "deuteron.selectorLabels" -}}
app.kubernetes.io/name: {{ include "deuteron.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "deuteron.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{ include "deuteron.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "deuteron.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "deuteron.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "deuteron.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* The volume with the models; exactly one source may be given. */}}
{{- define "deuteron.modelsVolume" -}}
{{- $models := .Values.models }}
{{- $given := list }}
{{- if $models.persistentVolumeClaim }}{{ $given = append $given "persistentVolumeClaim" }}{{ end }}
{{- if $models.hostPath }}{{ $given = append $given "hostPath" }}{{ end }}
{{- if $models.image.reference }}{{ $given = append $given "image.reference" }}{{ end }}
{{- if $models.emptyDir }}{{ $given = append $given "emptyDir" }}{{ end }}
{{- if $models.volume }}{{ $given = append $given "volume" }}{{ end }}
{{- if ne (len $given) 1 }}
{{- fail (printf "models: give one of persistentVolumeClaim, hostPath, image.reference, emptyDir and volume (given: %s)" (default "none" (join ", " $given))) }}
{{- end }}
name: models
{{- if $models.persistentVolumeClaim }}
persistentVolumeClaim:
  claimName: {{ $models.persistentVolumeClaim }}
  {{- if $models.readOnly }}
  readOnly: true
  {{- end }}
{{- else if $models.hostPath }}
hostPath:
  path: {{ $models.hostPath }}
  type: Directory
{{- else if $models.image.reference }}
image:
  reference: {{ $models.image.reference }}
  pullPolicy: {{ $models.image.pullPolicy }}
{{- else if $models.emptyDir }}
emptyDir: {}
{{- else }}
{{- toYaml $models.volume | nindent 0 }}
{{- end }}
{{- end }}

{{/* The file of flags. What other values set comes last, so that both cannot disagree. */}}
{{- define "deuteron.toml" -}}
{{- $own := dict "model-repository" .Values.models.path "http-port" 8000 "grpc-port" 8001 "metrics-port" 8002 "drain-delay" (int .Values.drainDelaySeconds) "exit-timeout-secs" (int .Values.exitTimeoutSeconds) }}
{{- if .Values.keys.secret }}
{{- $_ := set $own "api-keys-file" "/etc/deuteron/keys/keys.toml" }}
{{- end }}
{{- if .Values.tls.secret }}
{{- range $port := list "http" "grpc" }}
{{- $_ := set $own (printf "%s-use-ssl" $port) true }}
{{- $_ := set $own (printf "%s-server-cert" $port) "/etc/deuteron/tls/tls.crt" }}
{{- $_ := set $own (printf "%s-server-key" $port) "/etc/deuteron/tls/tls.key" }}
{{- end }}
{{- end }}
{{- range $flag := keys .Values.config }}
{{- if hasKey $own $flag }}
{{- fail (printf "config: '%s' is set by other values of this chart" $flag) }}
{{- end }}
{{- end }}
{{- $flags := merge $own .Values.config }}
{{- range $flag := keys $flags | sortAlpha }}
{{- $value := get $flags $flag }}
{{- if kindIs "float64" $value }}
{{ $flag }} = {{ $value | int64 }}
{{- else }}
{{ $flag }} = {{ $value | toJson }}
{{- end }}
{{- end }}
{{- end }}
