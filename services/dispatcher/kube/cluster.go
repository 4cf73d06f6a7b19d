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

// Secrets gives the values of a workspace's Secrets.
type Secrets interface {
	Values(ctx context.Context, workspace string, secret events.SecretReference) (map[string][]byte, error)
}

// Cluster applies workspaces. Different workspaces may be applied at once, the same one must not.
type Cluster struct {
	policy      desired.Policy
	client      *Client
	namespaces  *Namespaces
	inventories *inventories

	mu   sync.Mutex
	uids map[desired.Reference]types.UID // of objects that were seen to be the workspace's own
}

// NewCluster makes one for a leader, with an empty memory. Call Load before its first use.
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

// Load reads the inventories of all workspaces, so that each need not be read on its own.
func (c *Cluster) Load(ctx context.Context) error { return c.inventories.load(ctx) }

func (c *Cluster) owner(w desired.Workspace) desired.Owner {
	return desired.Owner{Agent: c.policy.Agent, Workspace: w.ID}
}

// maxClaims bounds the attempts to win a compare-and-set; only somebody who edits inventories by
// hand makes more than two.
const maxClaims = 5

// claim writes the revision and the objects into the inventory. It fails with Superseded when the
// inventory has a higher revision.
func (c *Cluster) claim(ctx context.Context, w desired.Workspace, objects []desired.Reference) (inventory, error) {
	var err error
	for range maxClaims {
		var have inventory
		var remembered bool
		if have, remembered, err = c.inventories.get(ctx, w.ID); err != nil {
			return inventory{}, err
		}
		want := have
		want.revision, want.objects = w.Revision, desired.Union(have.objects, objects)
		if remembered && (want.equal(have) || have.revision > w.Revision) {
			// Nothing would be written, so nothing would tell that the memory is old.
			if have, err = c.inventories.read(ctx, w.ID); err != nil {
				return inventory{}, err
			}
			want = have
			want.revision, want.objects = w.Revision, desired.Union(have.objects, objects)
		}
		if have.revision > w.Revision {
			return inventory{}, failure.Superseding(have.revision, w.Revision)
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

// isObjectNotFound tells a missing object from a missing namespace.
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

// look returns an object's metadata, nil when there is no such object.
func (c *Cluster) look(ctx context.Context, reference desired.Reference) (*metav1.PartialObjectMetadata, error) {
	resource, err := c.resource(reference)
	if err != nil {
		return nil, err
	}
	object, err := resource.Get(ctx, reference.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // absence is an answer
	case err != nil:
		return nil, fmt.Errorf("look at %s: %w", failure.Describe(reference), err)
	}
	return object, nil
}

// patch applies a manifest, to the object with the UID only, or to a new one when that is empty.
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

// withUID is the manifest with a UID, which the API server then insists on. The manifest itself
// stays as it is.
func withUID(manifest map[string]any, uid types.UID) map[string]any {
	if uid == "" {
		return manifest
	}
	copied := maps.Clone(manifest)
	metadata := map[string]any{"uid": string(uid)}
	given, _ := manifest["metadata"].(map[string]any)
	maps.Copy(metadata, given)
	copied["metadata"] = metadata
	return copied
}

// remove deletes the object with this UID. It reports whether there was one.
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
	// A conflict says that the name now belongs to another object, so ours is gone.
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
