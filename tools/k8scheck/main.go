// Checks manifests as an API server does, without one: strict decoding, defaults, and the validation of Kubernetes
// itself for Jobs, with their pod templates, Services and Secrets. Custom kinds are skipped: the server knows their
// schemas alone, and so do the tests of tests/unit/launchers.
//
//	k8scheck FILE...
//
// Exit code 1 if anything is wrong; a line for each object.
package main

import (
	"fmt"
	"os"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	"k8s.io/kubernetes/pkg/apis/batch"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	batchvalidation "k8s.io/kubernetes/pkg/apis/batch/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
)

const namespace = "default" // where an object without one is stored

func main() {
	decoder := serializer.NewCodecFactory(legacyscheme.Scheme, serializer.EnableStrict).UniversalDecoder()
	wrong := false
	for _, path := range os.Args[1:] {
		text, err := os.ReadFile(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		for number, document := range strings.Split("\n"+string(text), "\n---\n") {
			for _, line := range checkDocument(decoder, document) {
				fmt.Printf("%s, document %d: %s\n", path, number+1, line.text)
				wrong = wrong || line.wrong
			}
		}
	}
	if wrong {
		os.Exit(1)
	}
}

type finding struct {
	text  string
	wrong bool
}

func checkDocument(decoder runtime.Decoder, document string) []finding {
	object, kind, err := decoder.Decode([]byte(document), nil, nil)
	if runtime.IsNotRegisteredError(err) {
		return []finding{{fmt.Sprintf("skipped, a custom kind: %v", err), false}}
	}
	if err != nil {
		return []finding{{err.Error(), true}}
	}
	errors, known := check(object)
	if !known {
		return []finding{{fmt.Sprintf("%s: nothing here checks this kind", kind.Kind), true}}
	}
	if len(errors) == 0 {
		return []finding{{fmt.Sprintf("%s: ok", kind.Kind), false}}
	}
	found := []finding{}
	for _, one := range errors {
		found = append(found, finding{fmt.Sprintf("%s: %v", kind.Kind, one), true})
	}
	return found
}

// Before it validates, the server's storage fills in what the defaults of a kind do not; so do these.
func check(object runtime.Object) (field.ErrorList, bool) {
	switch one := object.(type) {
	case *batch.Job:
		one.Namespace = namespace
		given := true
		one.Spec.ManualSelector = &given
		if one.Spec.Template.Labels == nil {
			one.Spec.Template.Labels = map[string]string{}
		}
		one.Spec.Template.Labels["job-name"] = one.Name
		one.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"job-name": one.Name}}
		return batchvalidation.ValidateJobCreate(one, batchvalidation.JobValidationOptions{}), true
	case *core.Service:
		one.Namespace = namespace
		if len(one.Spec.ClusterIPs) == 0 && one.Spec.ClusterIP != "" {
			one.Spec.ClusterIPs = []string{one.Spec.ClusterIP}
		}
		if one.Spec.IPFamilyPolicy == nil {
			single := core.IPFamilyPolicySingleStack
			one.Spec.IPFamilyPolicy, one.Spec.IPFamilies = &single, []core.IPFamily{core.IPv4Protocol}
		}
		return corevalidation.ValidateServiceCreate(one), true
	case *core.Secret:
		one.Namespace = namespace
		return corevalidation.ValidateSecret(one), true
	}
	return nil, false
}
