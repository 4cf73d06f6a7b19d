package kube

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// pageSize bounds what one answer of the API server takes in memory before it is trimmed.
const pageSize = 500

// Listing is one kind as it was at one version.
type Listing struct {
	Kind Kind
	// Version of the listing; of several namespaces, which are listed one after the other, that of the first: what it does not have may be in a later one,
	// and what is above it may not be in an earlier one.
	Version string
	Objects []metav1.Object
}

// List reads every object of a kind of the scope. All pages of a namespace are of one version, and that is not older than anything
// that was watched before the call: no resourceVersion is asked for, so the API server reads the latest. intern may return an equal object that
// is held already in place of the one read.
func (c *Client) List(ctx context.Context, scope Scope, kind Kind, intern func(metav1.Object) metav1.Object) (Listing, error) {
	listing := Listing{Kind: kind}
	for _, namespace := range scope.namespaces {
		version, err := c.listNamespace(ctx, scope, kind, namespace, func(o metav1.Object) {
			listing.Objects = append(listing.Objects, intern(o))
		})
		if err != nil {
			return Listing{}, fmt.Errorf("list %ss%s: %w", kind, within(namespace), err)
		}
		if listing.Version == "" {
			listing.Version = version
		}
	}
	return listing, nil
}

func (c *Client) listNamespace(ctx context.Context, scope Scope, kind Kind, namespace string, take func(metav1.Object)) (string, error) {
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
			return "", err //nolint:wrapcheck // List says what it is about
		}
		if version == "" {
			version = head.GetResourceVersion()
		}
		err = meta.EachListItem(page, func(item runtime.Object) error {
			trimmed, err := scope.trim(item)
			if err != nil {
				return err
			}
			object, err := meta.Accessor(trimmed)
			if err != nil {
				return err //nolint:wrapcheck // as above
			}
			take(object)
			return nil
		})
		if err != nil {
			return "", err //nolint:wrapcheck // as above
		}
		if head.GetContinue() == "" {
			return version, nil
		}
		options.Continue = head.GetContinue()
	}
}

// within names a namespace in a sentence; all of them need no word.
func within(namespace string) string {
	if namespace == metav1.NamespaceAll {
		return ""
	}
	return " in namespace " + namespace
}
