"""An endpoint picker for proxies: where each of their requests goes, by the gateway's decisions.

    endpoint.py         addresses of engines, as proxies write them
    picked_request.py   one request of a proxy, from its headers to the end of its answer
    answers.py          what a proxy is told, as messages
    server.py           gRPC: streams, health, bounds
    proto/, messages/   what is said, and what the compiler makes of it

Source: docs/proposals/004-endpoint-picker-protocol of the Gateway API Inference Extension, 1.0.0,
and Envoy's external processing service, `envoy.service.ext_proc.v3`. A proxy sends the headers and
the body of a request; it is told an engine, and others in order; it says where the request really
went, and sends the answer. Bodies pass through here in full duplex.
"""
