package render

import (
	"encoding/json"
	"fmt"
	"strconv"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/orphan"
	"lockstep.internal/services/state/workspace"
)

// MaxSize is the limit of the rendered event data, in bytes (256 KiB).
const MaxSize = 256 << 10

// Desired renders the data of the event desired.workspace: an [events.DesiredWorkspace] as JSON.
func Desired(w workspace.Workspace, m agent.Manifests) (json.RawMessage, error) {
	d := desired{DesiredWorkspace: events.DesiredWorkspace{
		WorkspaceID: w.ID.String(), Name: w.Name, Namespace: w.Namespace, DesiredRevision: int(w.DesiredRevision),
		Target: w.DesiredState.Target(),
	}}
	if d.Target != events.DesiredTargetTerminated {
		var err error
		if d.Manifests, err = manifests(w, m); err != nil {
			return nil, fmt.Errorf("render workspace %s: %w", w.ID, err)
		}
		d.Secrets = secrets(w)
	}
	data, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("render workspace %s: %w", w.ID, err)
	}
	return data, nil
}

// CheckSize returns the fault payload_too_large if the data of a workspace is above [MaxSize]. Call it when the spec
// changes: settings and revisions, which also change the size, must not fail. The limit of a message is much higher.
func CheckSize(name string, data []byte) error {
	if len(data) <= MaxSize {
		return nil
	}
	return fault.New(errcode.PayloadTooLarge,
		"the Kubernetes objects of workspace %q would have %d bytes, the limit is %d: "+
			"shorten its variables, command or arguments",
		name, len(data), MaxSize).With("size_bytes", strconv.Itoa(len(data)))
}

// desired is an events.DesiredWorkspace with typed manifests, so that they are encoded only once.
type desired struct {
	events.DesiredWorkspace

	Manifests []any `json:"manifests,omitempty"`
}

func secrets(w workspace.Workspace) []events.SecretReference {
	var out []events.SecretReference
	if len(w.Spec.SecretEnv) > 0 {
		out = append(out, events.SecretReference{Name: w.SecretEnvName(), Digest: w.Spec.SecretEnvDigest})
	}
	if len(w.Spec.SecretFiles) > 0 {
		out = append(out, events.SecretReference{Name: w.SecretFilesName(), Digest: w.Spec.SecretFilesDigest})
	}
	if w.Spec.PullSecretDigest != "" {
		out = append(out, events.SecretReference{Name: w.PullSecretName(), Digest: w.Spec.PullSecretDigest})
	}
	return out
}

// DeletedOrphan returns the data of the event that deletes an orphan. Its manifests have only the version, kind, name
// and namespace of the objects of a workspace with that name. The dispatcher deletes the objects with the orphan's
// labels, and all objects in its inventory.
func DeletedOrphan(o orphan.Orphan) events.DesiredWorkspace {
	w := workspace.Workspace{Name: o.Name}
	stub := func(apiVersion, kind, name string) map[string]any {
		metadata := map[string]any{"name": name, "namespace": o.Namespace}
		return map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": metadata}
	}
	return events.DesiredWorkspace{
		WorkspaceID: o.Label, Name: o.Name, Namespace: o.Namespace, DesiredRevision: int(o.DesiredRevision),
		Target: events.DesiredTargetTerminated,
		Manifests: []map[string]any{
			stub("v1", "ServiceAccount", o.Name),
			stub("networking.k8s.io/v1", "NetworkPolicy", o.Name),
			stub("v1", "ResourceQuota", o.Name),
			stub("rbac.authorization.k8s.io/v1", "RoleBinding", rendering{Workspace: w}.ownerBindingName()),
			stub("v1", "ConfigMap", rendering{Workspace: w}.agentName()),
			stub("v1", "Secret", w.SecretEnvName()),
			stub("v1", "Secret", w.SecretFilesName()),
			stub("v1", "Secret", w.PullSecretName()),
			stub("v1", "PersistentVolumeClaim", rendering{Workspace: w}.volumeName()),
			stub("v1", "Service", o.Name),
			stub("apps/v1", "Deployment", o.Name),
		},
	}
}
