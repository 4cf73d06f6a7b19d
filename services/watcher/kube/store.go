package kube

import (
	"errors"
	"fmt"
	"log/slog"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/services/watcher/object"
)

// store holds the trimmed objects of one reflector and reports each difference to a [Handler]. It takes
// the place of an informer's cache and queue, so that one copy of an object is held. Only its reflector
// calls it, one call at a time.
type store struct {
	kind    object.Kind
	trim    func(o any) (object.Object, error)
	handler Handler
	logger  *slog.Logger
	objects map[types.NamespacedName]object.Object
	synced  chan struct{} // closed after the first list
}

var _ cache.TransformingStore = (*store)(nil)

func newStore(kind object.Kind, scope Scope, handler Handler, logger *slog.Logger) *store {
	return &store{
		kind: kind, trim: scope.trim, handler: handler, logger: logger,
		objects: make(map[types.NamespacedName]object.Object), synced: make(chan struct{}),
	}
}

func (s *store) isSynced() bool {
	select {
	case <-s.synced:
		return true
	default:
		return false
	}
}

// Add implements [cache.ReflectorStore].
func (s *store) Add(o any) error { return s.put(o, object.Changed) }

// Update implements [cache.ReflectorStore].
func (s *store) Update(o any) error { return s.put(o, object.Changed) }

// Delete implements [cache.ReflectorStore]. The object has the version of its deletion.
func (s *store) Delete(o any) error {
	deleted, err := s.heldOrTrimmed(o)
	if err != nil {
		return err
	}
	name := nameOf(deleted)
	if _, known := s.objects[name]; known {
		delete(s.objects, name)
		s.handler.Deleted(s.kind, deleted, false)
	}
	return nil
}

// Replace implements [cache.ReflectorStore] for the result of a list.
func (s *store) Replace(listed []any, _ string) error {
	origin := object.Found
	if !s.isSynced() {
		origin = object.Initial
		defer close(s.synced)
	}
	present := make(map[types.NamespacedName]struct{}, len(listed))
	var errs []error
	for _, o := range listed {
		if err := s.put(o, origin); err != nil {
			errs = append(errs, err)
		}
		if m, err := meta.Accessor(o); err == nil {
			present[nameOf(m)] = struct{}{}
		}
	}
	for name, o := range s.objects {
		if _, there := present[name]; !there {
			delete(s.objects, name)
			s.handler.Deleted(s.kind, o, true)
		}
	}
	return errors.Join(errs...)
}

// Resync implements [cache.ReflectorStore].
func (s *store) Resync() error { return nil }

// Transformer implements [cache.TransformingStore]: it trims objects while a list is streamed.
func (s *store) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		trimmed, err := s.heldOrTrimmed(o)
		return listItem{trimmed}, err
	}
}

func (s *store) put(o any, origin object.Origin) error {
	now, err := s.heldOrTrimmed(o)
	if err != nil {
		return err
	}
	name := nameOf(now)
	before, known := s.objects[name]
	if !known {
		s.objects[name] = now
		s.handler.Upserted(s.kind, now, origin)
		return nil
	}
	order, err := resourceversion.CompareResourceVersion(now.GetResourceVersion(), before.GetResourceVersion())
	if err == nil && order == 0 && now.GetUID() == before.GetUID() {
		return nil
	}
	s.objects[name] = now
	if err == nil && order < 0 {
		s.handler.VersionDecreased(s.kind)
	}
	revision, _ := now.(*object.Revision)
	former, _ := before.(*object.Revision)
	isRevision := revision != nil && former != nil
	if isRevision && revision.Same(former) {
		return nil
	}
	// A list shows one object of a name, also when the object was deleted and recreated meanwhile.
	if now.GetUID() != before.GetUID() || isRevision && revision.Owner != former.Owner {
		s.handler.Deleted(s.kind, before, true)
	}
	s.handler.Upserted(s.kind, now, origin)
	return nil
}

// heldOrTrimmed returns the object that is held if it has this version, and a trimmed copy otherwise.
func (s *store) heldOrTrimmed(o any) (object.Object, error) {
	if item, trimmed := o.(listItem); trimmed {
		return item.Object, nil
	}
	m, err := meta.Accessor(o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.kind, err)
	}
	if held, known := s.objects[nameOf(m)]; known && isVersionOf(held, m) {
		return held, nil
	}
	return s.trim(o)
}

func isVersionOf(held object.Object, m metav1.Object) bool {
	return held.GetResourceVersion() == m.GetResourceVersion() && held.GetUID() == m.GetUID()
}

func nameOf(o interface {
	GetNamespace() string
	GetName() string
},
) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// listItem is a trimmed object in a list.
type listItem struct{ object.Object }

// GetObjectMeta implements [metav1.ObjectMetaAccessor].
func (i listItem) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{
		Namespace: i.GetNamespace(), Name: i.GetName(), UID: i.GetUID(), ResourceVersion: i.GetResourceVersion(),
	}
}

// GetObjectKind implements [runtime.Object].
func (i listItem) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements [runtime.Object]. The object is immutable.
func (i listItem) DeepCopyObject() runtime.Object { return i }
