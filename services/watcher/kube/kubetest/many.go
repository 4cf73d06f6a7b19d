package kubetest

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

const protobufType = "application/vnd.kubernetes.protobuf"

// many is a list of objects that are made for each request.
type many struct {
	resource string
	count    int
	object   func(i int) runtime.Object
}

// SetMany is Set for many objects that are not kept. Object makes the i-th one for each request: a
// *appsv1.Deployment, *appsv1.ReplicaSet or *corev1.Pod. It is called concurrently. Lists are in
// protobuf, and in pages if the client requests pages.
func (s *Server) SetMany(resource string, version, count int, object func(i int) runtime.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists[resource] = list{version: version, many: &many{resource: resource, count: count, object: object}}
}

// serve answers with one page. Its continue token is the number of the next object.
func (m *many) serve(w http.ResponseWriter, r *http.Request, version int) {
	query := r.URL.Query()
	first, _ := strconv.Atoi(query.Get("continue")) // from the beginning where there is none
	limit, err := strconv.Atoi(query.Get("limit"))
	if err != nil || limit == 0 {
		limit = m.count
	}
	end := min(first+limit, m.count)
	head := metav1.ListMeta{ResourceVersion: strconv.Itoa(version)}
	if end < m.count {
		head.Continue = strconv.Itoa(end)
	}
	page, err := m.page(head, first, end, strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList"))
	if err != nil {
		reply(w, http.StatusInternalServerError, status(http.StatusInternalServerError, metav1.StatusReasonInternalError))
		return
	}
	w.Header().Set("Content-Type", protobufType)
	// A client that is gone needs no answer.
	_ = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(page, w)
}

func (m *many) page(head metav1.ListMeta, first, end int, metadataOnly bool) (runtime.Object, error) {
	if metadataOnly {
		page := &metav1.PartialObjectMetadataList{
			TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"},
			ListMeta: head,
		}
		for i := first; i < end; i++ {
			object, isObject := m.object(i).(metav1.ObjectMetaAccessor)
			if !isObject {
				return nil, fmt.Errorf("%s %d is no object", m.resource, i)
			}
			meta, isMeta := object.GetObjectMeta().(*metav1.ObjectMeta)
			if !isMeta {
				return nil, fmt.Errorf("%s %d has no metadata", m.resource, i)
			}
			page.Items = append(
				page.Items,
				metav1.PartialObjectMetadata{
					TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ReplicaSet"},
					ObjectMeta: *meta,
				},
			)
		}
		return page, nil
	}
	switch m.resource {
	case Deployments:
		items, err := itemsOf[appsv1.Deployment](m, first, end)
		return &appsv1.DeploymentList{
			TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DeploymentList"},
			ListMeta: head,
			Items:    items,
		}, err
	case ReplicaSets:
		items, err := itemsOf[appsv1.ReplicaSet](m, first, end)
		return &appsv1.ReplicaSetList{
			TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ReplicaSetList"},
			ListMeta: head,
			Items:    items,
		}, err
	default:
		items, err := itemsOf[corev1.Pod](m, first, end)
		return &corev1.PodList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"},
			ListMeta: head,
			Items:    items,
		}, err
	}
}

func itemsOf[T any](m *many, first, end int) ([]T, error) {
	items := make([]T, 0, end-first)
	for i := first; i < end; i++ {
		object, isT := any(m.object(i)).(*T)
		if !isT {
			return nil, fmt.Errorf("%s %d is a %T", m.resource, i, m.object(i))
		}
		items = append(items, *object)
	}
	return items, nil
}
