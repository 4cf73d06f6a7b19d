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
	Kind    Kind
	Version string
	Objects []metav1.Object
}

// List reads every object of a kind that the label selector matches. All pages are of one version, and that is not older than anything
// that was watched before the call: no resourceVersion is asked for, so the API server reads the latest. intern may return an equal object that
// is held already in place of the one read.
func (c *Client) List(ctx context.Context, kind Kind, selector string, intern func(metav1.Object) metav1.Object) (Listing, error) {
	src, err := c.source(kind)
	if err != nil {
		return Listing{}, err
	}
	listing := Listing{Kind: kind}
	options := metav1.ListOptions{LabelSelector: selector, Limit: pageSize}
	for {
		page, err := src.list(ctx, options)
		if err != nil {
			return Listing{}, fmt.Errorf("list %ss: %w", kind, err)
		}
		head, err := meta.ListAccessor(page)
		if err != nil {
			return Listing{}, fmt.Errorf("list %ss: %w", kind, err)
		}
		if listing.Version == "" {
			listing.Version = head.GetResourceVersion()
		}
		err = meta.EachListItem(page, func(item runtime.Object) error {
			trimmed, err := trim(item)
			if err != nil {
				return err
			}
			object, err := meta.Accessor(trimmed)
			if err != nil {
				return err //nolint:wrapcheck // said below
			}
			listing.Objects = append(listing.Objects, intern(object))
			return nil
		})
		if err != nil {
			return Listing{}, fmt.Errorf("list %ss: %w", kind, err)
		}
		if head.GetContinue() == "" {
			return listing, nil
		}
		options.Continue = head.GetContinue()
	}
}
