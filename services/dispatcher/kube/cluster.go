package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/failure"
)

// FieldManager owns what the dispatcher applies.
const FieldManager = "lockstep"

// SecretSource returns the values of a workspace's Secrets.
type SecretSource interface {
	Values(ctx context.Context, workspace string, secret events.SecretReference) (map[string][]byte, error)
}

// Cluster applies workspaces. Calls for different workspaces may be concurrent, calls for one workspace must not.
type Cluster struct {
	policy      desired.Policy
	client      *Client
	namespaces  *Namespaces
	inventories *inventories

	mu   sync.Mutex
	uids map[desired.Reference]types.UID // of objects known to belong to their workspace
}

// NewCluster returns a Cluster with an empty cache, for one leader session. Call Load before its first use.
func NewCluster(client *Client, policy desired.Policy, namespaces *Namespaces) *Cluster {
	return &Cluster{
		policy:     policy,
		client:     client,
		namespaces: namespaces,
		inventories: &inventories{
			agent: policy.Agent, client: client.core.ConfigMaps(AgentNamespace(policy.Agent)), known: map[string]inventory{},
		},
		uids: map[desired.Reference]types.UID{},
	}
}

// Load reads the inventories of all workspaces with one list request.
func (c *Cluster) Load(ctx context.Context) error { return c.inventories.load(ctx) }

func (c *Cluster) owner(w desired.Workspace) desired.Owner {
	return desired.Owner{Agent: c.policy.Agent, Workspace: w.ID}
}

// maxConflicts bounds the attempts to write an inventory, and to apply an object that is deleted and recreated
// meanwhile.
const maxConflicts = 5

// recordRevision writes the revision and the objects into the inventory. It fails with Superseded if the inventory
// has a higher revision.
func (c *Cluster) recordRevision(
	ctx context.Context, w desired.Workspace, objects []desired.Reference,
) (inventory, error) {
	var err error
	for range maxConflicts {
		var have inventory
		var remembered bool
		if have, remembered, err = c.inventories.get(ctx, w.ID); err != nil {
			return inventory{}, err
		}
		want := have
		want.revision, want.objects = w.Revision, desired.Union(have.objects, objects)
		if remembered && (want.equal(have) || have.revision > w.Revision) {
			// No write follows, so a stale cache would not be detected: read it again.
			if have, err = c.inventories.read(ctx, w.ID); err != nil {
				return inventory{}, err
			}
			want = have
			want.revision, want.objects = w.Revision, desired.Union(have.objects, objects)
		}
		if have.revision > w.Revision {
			return inventory{}, failure.NewSuperseded(have.revision, w.Revision)
		}
		if have.exists() && want.equal(have) {
			return have, nil
		}
		if want, err = c.inventories.put(ctx, w.ID, want); err == nil {
			return want, nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !isObjectNotFound(err) {
			return inventory{}, err
		}
	}
	return inventory{}, err
}

// isObjectNotFound reports whether the object is missing, and not its namespace.
func isObjectNotFound(err error) bool {
	var status apierrors.APIStatus
	return apierrors.IsNotFound(err) && errors.As(err, &status) &&
		(status.Status().Details == nil || status.Status().Details.Kind != "namespaces")
}

func (c *Cluster) resource(reference desired.Reference) (metadata.ResourceInterface, error) {
	kind, known := desired.LookupKind(reference.ApiVersion, reference.Kind)
	if !known {
		return nil, failure.New(
			failure.UnknownKind, &reference, "%s: this dispatcher does not know the kind", failure.Describe(reference),
		)
	}
	if !kind.Namespaced {
		return c.client.meta.Resource(kind.Resource), nil
	}
	return c.client.meta.Resource(kind.Resource).Namespace(reference.Namespace), nil
}

// getMetadata returns an object's metadata, or nil if it does not exist.
func (c *Cluster) getMetadata(ctx context.Context, reference desired.Reference) (*metav1.PartialObjectMetadata, error) {
	resource, err := c.resource(reference)
	if err != nil {
		return nil, err
	}
	object, err := readMetadata(ctx, resource, reference)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // nil means not found
	case err != nil:
		return nil, fmt.Errorf("get %s: %w", failure.Describe(reference), err)
	}
	return object, nil
}

// readMetadata reads a Secret by a patch that changes nothing. The dispatcher has no permission to get Secrets: RBAC
// could not confine it to the namespaces of workspaces. The admission policy of deploy/rbac/dispatcher.yaml confines
// patches.
func readMetadata(
	ctx context.Context, resource metadata.ResourceInterface, reference desired.Reference,
) (*metav1.PartialObjectMetadata, error) {
	if reference.Kind != desired.KindSecret {
		return resource.Get(ctx, reference.Name, metav1.GetOptions{}) //nolint:wrapcheck // the caller wraps it
	}
	options := metav1.PatchOptions{FieldManager: FieldManager, DryRun: []string{metav1.DryRunAll}}
	//nolint:wrapcheck // the caller wraps it
	return resource.Patch(ctx, reference.Name, types.MergePatchType, []byte("{}"), options)
}

// patch applies a manifest by server-side apply. With a UID, it changes only the object with that UID.
func (c *Cluster) patch(
	ctx context.Context, object desired.Object, uid types.UID,
) (*metav1.PartialObjectMetadata, error) {
	resource, err := c.resource(object.Reference)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(withUID(object.Manifest, uid))
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", failure.Describe(object.Reference), err)
	}
	force := true
	applied, err := resource.Patch(
		ctx, object.Name, types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: FieldManager, Force: &force},
	)
	if err != nil {
		return nil, fmt.Errorf("apply %s: %w", failure.Describe(object.Reference), err)
	}
	return applied, nil
}

// withUID returns a copy of the manifest with metadata.uid, which the API server checks.
func withUID(manifest map[string]any, uid types.UID) map[string]any {
	if uid == "" {
		return manifest
	}
	copied := maps.Clone(manifest)
	metadata := map[string]any{"uid": string(uid)}
	original, _ := manifest["metadata"].(map[string]any)
	maps.Copy(metadata, original)
	copied["metadata"] = metadata
	return copied
}

// remove deletes the object with this UID, if it exists.
func (c *Cluster) remove(
	ctx context.Context, reference desired.Reference, uid types.UID, propagation metav1.DeletionPropagation,
) error {
	resource, err := c.resource(reference)
	if err != nil {
		return err
	}
	err = resource.Delete(ctx, reference.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &propagation,
	})
	// On a conflict the name has another UID, so the object is already deleted.
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete %s: %w", failure.Describe(reference), err)
	}
	c.forget(reference)
	return nil
}

func (c *Cluster) uid(reference desired.Reference) types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.uids[reference]
}

func (c *Cluster) remember(reference desired.Reference, uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.uids[reference] = uid
}

func (c *Cluster) forget(reference desired.Reference) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.uids, reference)
}
