package kube

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"lockstep.internal/services/watcher/object"
)

// pageSize bounds the memory of one response of the API server before it is trimmed.
const pageSize = 500

// List reads all objects of one kind of the scope.
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
	list := object.List{Kind: kind, ListedAt: time.Now()}
	for _, namespace := range scope.namespaces {
		version, err := c.listNamespace(ctx, scope, kind, namespace, func(item runtime.Object) error {
			m, err := meta.Accessor(item)
			if err != nil {
				return err //nolint:wrapcheck // wrapped below
			}
			o := held(object.KeyOf(kind, m), m.GetResourceVersion())
			if o == nil {
				if o, err = scope.trim(item); err != nil {
					return err
				}
			}
			list.Objects = append(list.Objects, o)
			return nil
		})
		if err != nil {
			return object.List{}, fmt.Errorf("list %ss%s: %w", kind, inNamespace(namespace), err)
		}
		if list.ResourceVersion == "" {
			list.ResourceVersion = version
		}
	}
	return list, nil
}

func (c *Client) listNamespace(
	ctx context.Context, scope Scope, kind object.Kind, namespace string, take func(runtime.Object) error,
) (string, error) {
	src, err := c.source(kind, namespace)
	if err != nil {
		return "", err
	}
	version := ""
	options := metav1.ListOptions{LabelSelector: scope.labels, Limit: pageSize}
	for {
		page, err := src.list(ctx, options)
		if err != nil {
			return "", err
		}
		head, err := meta.ListAccessor(page)
		if err != nil {
			return "", err //nolint:wrapcheck // List wraps it
		}
		if version == "" {
			version = head.GetResourceVersion()
		}
		if err := meta.EachListItem(page, take); err != nil {
			return "", err //nolint:wrapcheck // List wraps it
		}
		if head.GetContinue() == "" {
			return version, nil
		}
		options.Continue = head.GetContinue()
	}
}

// inNamespace names a namespace in a sentence, the empty string for all.
func inNamespace(namespace string) string {
	if namespace == metav1.NamespaceAll {
		return ""
	}
	return " in namespace " + namespace
}
