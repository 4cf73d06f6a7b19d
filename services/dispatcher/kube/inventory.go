package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"

	"lockstep.internal/services/dispatcher/desired"
)

// Keys of an inventory's data.
const (
	keyRevision = "desired_revision"
	keyObjects  = "objects"
)

const inventoryPrefix = "workspace-"

// inventoryName returns the name of a workspace's inventory. If the workspace label of an orphan is not a valid
// name, its hash is used.
func inventoryName(workspace string) string {
	if name := inventoryPrefix + workspace; len(validation.IsDNS1123Subdomain(name)) == 0 {
		return name
	}
	sum := sha256.Sum256([]byte(workspace))
	return inventoryPrefix + "label-" + hex.EncodeToString(sum[:])
}

// inventory records the last revision of a workspace, and every object that may have been created for it.
type inventory struct {
	revision int64
	objects  []desired.Reference

	uid     types.UID // empty when it does not exist
	version string    // resourceVersion
}

func (i inventory) exists() bool { return i.uid != "" }

// inventories stores inventories in ConfigMaps, with a cache. put detects a stale cache by the resource version.
type inventories struct {
	agent  int64
	client coreclient.ConfigMapInterface

	mu    sync.Mutex
	known map[string]inventory
	all   bool // the cache is complete: a missing inventory does not exist
}

// load reads all inventories with one list request.
func (s *inventories) load(ctx context.Context) error {
	list, err := s.client.List(
		ctx, metav1.ListOptions{LabelSelector: desired.LabelAgent + "=" + strconv.FormatInt(s.agent, 10)},
	)
	if err != nil {
		return fmt.Errorf("list the inventories: %w", err)
	}
	known := make(map[string]inventory, len(list.Items))
	for i := range list.Items {
		if workspace := list.Items[i].Labels[desired.LabelWorkspace]; list.Items[i].Name == inventoryName(workspace) {
			known[workspace] = readInventory(&list.Items[i])
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known, s.all = known, true
	return nil
}

// get returns the inventory and whether it came from the cache. It returns an empty inventory if none exists.
func (s *inventories) get(ctx context.Context, workspace string) (inventory, bool, error) {
	s.mu.Lock()
	i, found := s.known[workspace]
	all := s.all
	s.mu.Unlock()
	if found || all {
		return i, true, nil
	}
	i, err := s.read(ctx, workspace)
	return i, false, err
}

// read returns the inventory as it is now.
func (s *inventories) read(ctx context.Context, workspace string) (inventory, error) {
	object, err := s.client.Get(ctx, inventoryName(workspace), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		s.forget(workspace)
		return inventory{}, nil
	case err != nil:
		return inventory{}, fmt.Errorf("read the inventory: %w", err)
	}
	i := readInventory(object)
	s.remember(workspace, i)
	return i, nil
}

// put writes the inventory if it is still the version that was read. Otherwise it returns a Conflict, AlreadyExists
// or NotFound error.
func (s *inventories) put(ctx context.Context, workspace string, i inventory) (inventory, error) {
	objects, err := json.Marshal(i.objects)
	if err != nil {
		return inventory{}, fmt.Errorf("write the inventory: %w", err)
	}
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name: inventoryName(workspace), UID: i.uid, ResourceVersion: i.version,
			Labels: desired.Owner{Agent: s.agent, Workspace: workspace}.Labels(),
		},
		Data: map[string]string{keyRevision: strconv.FormatInt(i.revision, 10), keyObjects: string(objects)},
	}
	if i.exists() {
		object, err = s.client.Update(ctx, object, metav1.UpdateOptions{FieldManager: FieldManager})
	} else {
		object, err = s.client.Create(ctx, object, metav1.CreateOptions{FieldManager: FieldManager})
	}
	if err != nil {
		s.forget(workspace)
		return inventory{}, fmt.Errorf("write the inventory: %w", err)
	}
	i.uid, i.version = object.UID, object.ResourceVersion
	s.remember(workspace, i)
	return i, nil
}

// remove deletes the inventory if it is still the version that was read.
func (s *inventories) remove(ctx context.Context, workspace string, i inventory) error {
	s.forget(workspace)
	err := s.client.Delete(ctx, inventoryName(workspace), metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &i.uid, ResourceVersion: &i.version},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the inventory: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, workspace)
	return nil
}

func (s *inventories) remember(workspace string, i inventory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[workspace] = i
}

// forget removes the inventory from the cache.
func (s *inventories) forget(workspace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, workspace)
	s.all = false
}

func readInventory(object *corev1.ConfigMap) inventory {
	i := inventory{uid: object.UID, version: object.ResourceVersion}
	// Invalid content is treated as empty. The next revision lists its objects again.
	i.revision, _ = strconv.ParseInt(object.Data[keyRevision], 10, 64)
	if json.Unmarshal([]byte(object.Data[keyObjects]), &i.objects) != nil { // see above
		i.objects = nil
	}
	return i
}

func (i inventory) equal(other inventory) bool {
	return i.revision == other.revision && i.uid == other.uid && slices.Equal(i.objects, other.objects)
}
