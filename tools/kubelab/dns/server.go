package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"lockstep.internal/tools/kubelab/kubelet"
)

const (
	// maxQuery is the greatest size of a query in bytes.
	maxQuery = 512
	// maxAnswers keeps an answer within 512 bytes.
	maxAnswers = 8
	// ttl is short: a restarted pod has another address.
	ttl = 1
)

// Server answers queries.
type Server struct {
	// Client reads Services and pods.
	Client kubernetes.Interface
}

// Serve answers until ctx ends (no error), and closes conn.
func (s Server) Serve(ctx context.Context, conn net.PacketConn) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	buffer := make([]byte, maxQuery)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return errors.Join(fmt.Errorf("read a DNS query: %w", err), conn.Close())
		}
		answer, err := s.Answer(ctx, buffer[:n])
		if err != nil {
			continue // not a query
		}
		// Ignore the error: the client asks again.
		_, _ = conn.WriteTo(answer, from)
	}
}

// Answer returns the answer to a query. It returns an error if the message is not a query.
func (s Server) Answer(ctx context.Context, query []byte) ([]byte, error) {
	var parser dnsmessage.Parser
	header, err := parser.Start(query)
	if err != nil {
		return nil, fmt.Errorf("parse a DNS query: %w", err)
	}
	question, err := parser.Question()
	if err != nil {
		return nil, fmt.Errorf("parse a DNS question: %w", err)
	}
	if header.Response {
		return nil, errors.New("the DNS message is not a query")
	}
	message := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: header.ID, Response: true, Authoritative: true, RecursionDesired: header.RecursionDesired,
		},
		Questions: []dnsmessage.Question{question},
	}
	addresses, err := s.lookup(ctx, question.Name.String())
	switch {
	case apierrors.IsNotFound(err):
		message.RCode = dnsmessage.RCodeNameError
	case err != nil:
		message.RCode = dnsmessage.RCodeServerFailure
	case question.Type == dnsmessage.TypeA:
		for _, address := range addresses[:min(len(addresses), maxAnswers)] {
			message.Answers = append(message.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{
					Name: question.Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET, TTL: ttl,
				},
				Body: &dnsmessage.AResource{A: address.As4()},
			})
		}
	}
	answer, err := message.Pack()
	if err != nil {
		return nil, fmt.Errorf("encode a DNS answer: %w", err)
	}
	return answer, nil
}

// lookup returns the addresses of a name. The error is one of the API server, which is NotFound for unknown names.
func (s Server) lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	name = strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(name), "."), ".cluster.local")
	service, namespace, found := strings.Cut(strings.TrimSuffix(name, ".svc"), ".")
	if !found || !strings.HasSuffix(name, ".svc") || strings.Contains(namespace, ".") || service == "" || namespace == "" {
		return nil, fmt.Errorf("look up %s: %w", name, apierrors.NewNotFound(v1.Resource("services"), name))
	}
	object, err := s.Client.CoreV1().Services(namespace).Get(ctx, service, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get service %s/%s: %w", namespace, service, err)
	}
	if len(object.Spec.Selector) == 0 {
		return nil, nil
	}
	pods, err := s.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.SelectorFromSet(object.Spec.Selector).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("list the pods of service %s/%s: %w", namespace, service, err)
	}
	var addresses []netip.Addr
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Annotations[kubelet.AgentAnnotation] == "" || !isReady(pod) {
			continue
		}
		address, err := netip.ParseAddr(kubelet.ProcessAddress(pod))
		if err != nil {
			return nil, fmt.Errorf("address of pod %s/%s: %w", namespace, pod.Name, err)
		}
		addresses = append(addresses, address)
	}
	return addresses, nil
}

func isReady(pod *v1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue && pod.DeletionTimestamp == nil
		}
	}
	return false
}
