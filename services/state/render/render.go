package render

import (
	"encoding/json"
	"fmt"
	"strconv"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/domain"
)

// MaxSize of the rendered event's data, in bytes (256 KiB).
const MaxSize = 256 << 10

// Encoded is the data of the event that tells a dispatcher what a workspace shall be: an [events.DesiredWorkspace] as JSON. The fault payload_too_large says that it
// would be above [MaxSize].
func Encoded(w domain.Workspace, o Options) (json.RawMessage, error) {
	d := desired{DesiredWorkspace: events.DesiredWorkspace{
		WorkspaceID: w.ID.String(), Name: w.Name, Namespace: w.Namespace, DesiredRevision: int(w.DesiredRevision), Target: w.DesiredState.Target(),
	}}
	if d.Target != events.DesiredTargetTerminated {
		var err error
		if d.Manifests, err = manifests(w, o.withDefaults()); err != nil {
			return nil, fmt.Errorf("render workspace %s: %w", w.ID, err)
		}
		d.Secrets = secrets(w)
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

// desired is the event's data whose manifests are the objects as they are, rather than taken apart first.
type desired struct {
	events.DesiredWorkspace

	Manifests []any `json:"manifests,omitempty"`
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
