package render

import (
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/domain"
)

// DeletedOrphan is the data of the event that has a dispatcher delete an orphan: in place of manifests it has stubs of what a workspace of its name
// consists of. The dispatcher deletes those that bear the orphan's labels, and whatever else its own inventory names.
func DeletedOrphan(o domain.Orphan) events.DesiredWorkspace {
	w := domain.Workspace{Name: o.Name}
	stub := func(apiVersion, kind, name string) map[string]any {
		return map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name, "namespace": o.Namespace}}
	}
	return events.DesiredWorkspace{
		WorkspaceID: o.Label, Name: o.Name, Namespace: o.Namespace, DesiredRevision: int(o.DesiredRevision), Target: events.DesiredTargetTerminated,
		Manifests: []map[string]any{
			stub("v1", "ServiceAccount", o.Name),
			stub("networking.k8s.io/v1", "NetworkPolicy", o.Name),
			stub("v1", "ResourceQuota", o.Name),
			stub("v1", "Secret", w.SecretEnvName()),
			stub("v1", "Secret", w.SecretFilesName()),
			stub("v1", "PersistentVolumeClaim", rendering{Workspace: w}.volumeName()),
			stub("v1", "Service", o.Name),
			stub("apps/v1", "Deployment", o.Name),
		},
	}
}
