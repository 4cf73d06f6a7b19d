package kube

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"lockstep.internal/services/watcher/object"
)

// pageSize bounds the memory of one response of the API server before it is trimmed.
const pageSize = 500

// List reads all objects of one kind of the scope. The caller sets ListedAt.
//
// All pages of a namespace have one version, which is not older than any version watched before the
// call: the request has no resourceVersion, so the API server reads the latest. The version of a
// list of several namespaces is that of the first. With a later one, an object created in a namespace
// after that namespace was listed would look deleted.
//
// Held may return the object that is already held in this version; it is used without a copy.
func (c *Client) List(
	ctx context.Context, scope Scope, kind object.Kind, held func(key object.Key, resourceVersion string) object.Object,
) (object.List, error) {
	list := object.List{Kind: kind}
	for _, namespace := range scope.namespaces {
		l := lister{scope: scope, kind: kind, held: held}
		if err := l.list(ctx, c, namespace); err != nil {
			return object.List{}, fmt.Errorf("list %ss%s: %w", kind, inNamespace(namespace), err)
		}
		if list.ResourceVersion == "" {
			list.ResourceVersion = l.version
		}
		list.Objects = append(list.Objects, l.objects...)
	}
	return list, nil
}

// lister lists one kind in one namespace.
type lister struct {
	scope   Scope
	kind    object.Kind
	held    func(key object.Key, resourceVersion string) object.Object
	version string // of the list; empty before the first page
	objects []object.Object
}

// list reads all pages. If the scope allows it, their objects have only metadata, and a page with an object that is not
// held in its version is read again, whole.
func (l *lister) list(ctx context.Context, c *Client, namespace string) error {
	src, err := c.source(l.kind, namespace)
	if err != nil {
		return err
	}
	pages, options := src, metav1.ListOptions{LabelSelector: l.scope.labels, Limit: pageSize}
	if l.scope.metadataFirst {
		pages = c.metadata(l.kind, namespace)
	}
	for {
		page, err := pages.list(ctx, options)
		if err != nil {
			return err
		}
		head, err := meta.ListAccessor(page)
		if err != nil {
			return err //nolint:wrapcheck // List wraps it
		}
		if l.version == "" {
			l.version = head.GetResourceVersion()
		}
		if l.scope.metadataFirst && l.kind != object.ReplicaSet && !l.holds(page) {
			whole := options
			if whole.Continue == "" {
				whole.ResourceVersion, whole.ResourceVersionMatch = l.version, metav1.ResourceVersionMatchExact
			}
			if page, err = src.list(ctx, whole); err != nil {
				return err
			}
		}
		if err := meta.EachListItem(page, l.add); err != nil {
			return err //nolint:wrapcheck // List wraps it
		}
		if options.Continue = head.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}

// holds reports whether all objects of a page are held in their versions.
func (l *lister) holds(page runtime.Object) bool {
	return meta.EachListItem(page, func(item runtime.Object) error {
		m, err := meta.Accessor(item)
		if err == nil && l.held(object.KeyOf(l.kind, m), m.GetResourceVersion()) == nil {
			err = errNotHeld
		}
		return err
	}) == nil
}

var errNotHeld = errors.New("the object is not held")

func (l *lister) add(item runtime.Object) error {
	m, err := meta.Accessor(item)
	if err != nil {
		return err //nolint:wrapcheck // List wraps it
	}
	o := l.held(object.KeyOf(l.kind, m), m.GetResourceVersion())
	if o == nil {
		if o, err = l.scope.trim(item); err != nil {
			return err
		}
	}
	l.objects = append(l.objects, o)
	return nil
}

// inNamespace names a namespace in a sentence, the empty string for all.
func inNamespace(namespace string) string {
	if namespace == metav1.NamespaceAll {
		return ""
	}
	return " in namespace " + namespace
}
