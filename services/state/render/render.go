package render

import (
	"encoding/json"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/domain"
)

// MaxSize of the rendered event's data, in bytes (256 KiB).
const MaxSize = 256 << 10

// Desired is the data of the event that tells a dispatcher what a workspace shall be.
func Desired(w domain.Workspace, o Options) (events.DesiredWorkspace, error) {
	d := events.DesiredWorkspace{
		WorkspaceID: w.ID.String(), Name: w.Name, Namespace: w.Namespace, DesiredRevision: int(w.DesiredRevision), Target: w.DesiredState.Target(),
	}
	if d.Target == events.DesiredTargetTerminated {
		return d, nil
	}
	objects, err := objects(w, o.withDefaults())
	if err != nil {
		return d, fmt.Errorf("render workspace %s: %w", w.ID, err)
	}
	for _, object := range objects {
		manifest, err := manifestOf(object)
		if err != nil {
			return d, fmt.Errorf("render workspace %s: %w", w.ID, err)
		}
		d.Manifests = append(d.Manifests, manifest)
	}
	d.Secrets = secrets(w)
	return d, nil
}

// Encoded is [Desired] as JSON. The fault payload_too_large says that it would be above [MaxSize].
func Encoded(w domain.Workspace, o Options) (json.RawMessage, error) {
	d, err := Desired(w, o)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("render workspace %s: %w", w.ID, err)
	}
	if len(data) > MaxSize {
		return nil, fault.New(errcode.PayloadTooLarge,
			"workspace %q takes %d bytes as manifests, at most %d may be: make its variables shorter or fewer",
			w.Name, len(data), MaxSize).With("size_bytes", strconv.Itoa(len(data)))
	}
	return data, nil
}

// manifestOf is an object as it is sent: without the status, which is the cluster's.
func manifestOf(object any) (map[string]any, error) {
	manifest, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("take %T apart: %w", object, err)
	}
	delete(manifest, "status")
	return manifest, nil
}

func secrets(w domain.Workspace) []events.SecretReference {
	var out []events.SecretReference
	if len(w.Spec.SecretEnv) > 0 {
		out = append(out, events.SecretReference{Name: w.SecretEnvName(), Digest: w.Spec.SecretEnvDigest})
	}
	if len(w.Spec.SecretFiles) > 0 {
		out = append(out, events.SecretReference{Name: w.SecretFilesName(), Digest: w.Spec.SecretFilesDigest})
	}
	return out
}
