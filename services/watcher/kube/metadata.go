package kube

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"lockstep.internal/services/watcher/object"
)

// metadataList asks for a list of objects without specification and status.
const metadataList = runtime.ContentTypeProtobuf + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1," +
	runtime.ContentTypeJSON + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// metadata is the source of objects without specification and status.
func (c *Client) metadata(kind object.Kind, namespace string) source {
	group, client := appsv1.SchemeGroupVersion, c.typed.AppsV1().RESTClient()
	if kind == object.Pod {
		group, client = corev1.SchemeGroupVersion, c.typed.CoreV1().RESTClient()
	}
	plural := string(kind) + "s"
	resource := c.meta.Resource(group.WithResource(plural)).Namespace(namespace)
	s := sourceOf(c.meta, &metav1.PartialObjectMetadata{}, resource)
	s.list = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return c.pages.read(ctx, client.Get().Namespace(namespace).Resource(plural).
			VersionedParams(&o, scheme.ParameterCodec).SetHeader("Accept", metadataList))
	}
	return s
}

// pageReader reads lists of metadata into buffers that it uses again: client-go's own clients allocate each response,
// and a full resync reads hundreds of them. It is safe for concurrent use.
type pageReader struct {
	decoder runtime.Decoder
	buffers sync.Pool // of *bytes.Buffer
}

func newPageReader() *pageReader {
	s := runtime.NewScheme()
	utilruntime.Must(metav1.AddMetaToScheme(s))
	return &pageReader{
		decoder: serializer.NewCodecFactory(s).UniversalDeserializer(),
		buffers: sync.Pool{New: func() any { return new(bytes.Buffer) }},
	}
}

func (p *pageReader) read(ctx context.Context, request *rest.Request) (*metav1.PartialObjectMetadataList, error) {
	body, err := request.Stream(ctx)
	if err != nil {
		return nil, err //nolint:wrapcheck // List wraps it
	}
	defer func() { _ = body.Close() }() // what was read is complete, or an error
	buffer, _ := p.buffers.Get().(*bytes.Buffer)
	defer p.buffers.Put(buffer)
	buffer.Reset()
	if _, err := buffer.ReadFrom(body); err != nil {
		return nil, fmt.Errorf("read a page: %w", err)
	}
	page := &metav1.PartialObjectMetadataList{}
	if err := runtime.DecodeInto(p.decoder, buffer.Bytes(), page); err != nil { // it copies what it keeps
		return nil, fmt.Errorf("decode a page: %w", err)
	}
	return page, nil
}
